"""Who calls: issuers of their tokens, users and service accounts (principals), teams and who is in them."""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from control_plane.tables.system import metadata

issuers = Table(
    "issuers",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    Column("audiences", ARRAY(Text), nullable=False),
    Column("jwks_uri", Text),
    Column("jwks", LargeBinary),
    Column("algorithms", ARRAY(Text), nullable=False),
    Column("subject_claim", Text, nullable=False),
    Column("email_claim", Text),
    Column("groups_claim", Text),
    Column("group_teams", JSONB, nullable=False),
    Column("admits_unregistered", Boolean, nullable=False),
    Column("expiry", Text, nullable=False),
    Column("leeway_seconds", Integer, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(["workspace"], ["workspaces.workspace"], ondelete="CASCADE"),
    UniqueConstraint("workspace", "name"),
)

issuer_audiences = Table(
    "issuer_audiences",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("issuer_id", Text, primary_key=True),
    Column("audience", Text, primary_key=True),
    Column("issuer", Text, nullable=False),
    ForeignKeyConstraint(["workspace", "issuer_id"], ["issuers.workspace", "issuers.id"], ondelete="CASCADE"),
    UniqueConstraint("issuer", "audience"),
)

teams = Table(
    "teams",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("default_accounts", JSONB, nullable=False, server_default="{}"),
    Column("allowed_voices", ARRAY(Text)),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(["workspace"], ["workspaces.workspace"], ondelete="CASCADE"),
    UniqueConstraint("workspace", "name"),
)

principals = Table(
    "principals",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("email", Text),
    Column("role", Text, nullable=False, server_default="member"),
    Column("issuer_id", Text),
    Column("subject", Text),
    Column("is_disabled", Boolean, nullable=False, server_default="false"),
    Column("tokens_revoked_at", DateTime(timezone=True)),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(["workspace"], ["workspaces.workspace"], ondelete="CASCADE"),
    ForeignKeyConstraint(["workspace", "issuer_id"], ["issuers.workspace", "issuers.id"]),
    UniqueConstraint("workspace", "name"),
    UniqueConstraint("workspace", "issuer_id", "subject"),
    CheckConstraint("kind IN ('user', 'service_account')", name="kind"),
    CheckConstraint("role IN ('owner', 'admin', 'member')", name="role"),
    CheckConstraint("(issuer_id IS NULL) = (subject IS NULL)", name="identity"),
)

memberships = Table(
    "memberships",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("principal_id", Text, primary_key=True),
    Column("team_id", Text, primary_key=True),
    Column("position", Integer, nullable=False),
    ForeignKeyConstraint(["workspace", "principal_id"], ["principals.workspace", "principals.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["workspace", "team_id"], ["teams.workspace", "teams.id"], ondelete="CASCADE"),
)
Index("memberships_team_idx", memberships.c.workspace, memberships.c.team_id)
