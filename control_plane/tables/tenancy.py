"""A tenant's own tables: the workspace, its keys, its audit log, and the answers kept for repeated requests."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

from control_plane.tables.system import metadata

workspaces = Table(
    "workspaces",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("default_accounts", JSONB, nullable=False, server_default="{}"),
    Column("span_sampling", Double, nullable=False, server_default="1"),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    CheckConstraint("span_sampling >= 0 AND span_sampling <= 1", name="span_sampling"),
)

workspace_keys = Table(
    "workspace_keys",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("secret", LargeBinary, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("sealed_for", Text, nullable=False),
    Column("public", Text),
    ForeignKeyConstraint(["workspace"], ["workspaces.workspace"], ondelete="CASCADE"),
)

audit = Table(
    "audit",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("actor", Text, nullable=False),
    Column("actor_name", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("target_name", Text, nullable=False),
    Column("before", JSONB),
    Column("after", JSONB),
    Column("request_id", Text, nullable=False),
    Column("previous_hash", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
)

audit_heads = Table(
    "audit_heads",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    ForeignKeyConstraint(["workspace"], ["workspaces.workspace"], ondelete="CASCADE"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("principal", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("request_digest", LargeBinary, nullable=False),
    Column("status", Integer, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Column("etag", Text),
    Column("created_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(["workspace"], ["workspaces.workspace"], ondelete="CASCADE"),
)
