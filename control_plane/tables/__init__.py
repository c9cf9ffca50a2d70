"""The tables of the control plane, as SQLAlchemy Core sees them.

`migrations/postgres` makes them (a test compares both) and adds what Core cannot say: row-level security, the triggers
that fill the outbox, grants. Every row of a tenant carries `workspace`; keys and references include it, so that no row
can point into another tenant. Read next: `migrations/postgres/versions/0001_first_tables.py`.
"""

from control_plane.tables.exports import export_targets
from control_plane.tables.people import issuer_audiences, issuers, memberships, principals, teams
from control_plane.tables.routing import accounts, credentials, grants, model_subjects, models, prices
from control_plane.tables.system import metadata, outbox, owner_secrets, publication, signing_keys
from control_plane.tables.tenancy import audit, audit_heads, idempotency_keys, workspace_keys, workspaces
from control_plane.tables.tokens import tokens

__all__ = [
    "accounts",
    "audit",
    "audit_heads",
    "credentials",
    "export_targets",
    "grants",
    "idempotency_keys",
    "issuer_audiences",
    "issuers",
    "memberships",
    "metadata",
    "model_subjects",
    "models",
    "outbox",
    "owner_secrets",
    "prices",
    "principals",
    "publication",
    "signing_keys",
    "teams",
    "tokens",
    "workspace_keys",
    "workspaces",
]
