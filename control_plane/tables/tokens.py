"""Tokens that this control plane minted: what they may do and until when; of the token itself only its digest."""

from sqlalchemy import Boolean, Column, DateTime, ForeignKeyConstraint, Index, LargeBinary, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from control_plane.tables.system import metadata

tokens = Table(
    "tokens",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("principal_id", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("kind", Text, nullable=False),
    Column("audience", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("team_id", Text),
    Column("account_ids", ARRAY(Text)),
    Column("models", ARRAY(Text)),
    Column("operations", ARRAY(Text)),
    Column("origins", ARRAY(Text)),
    Column("scopes", ARRAY(Text)),
    Column("is_single_use", Boolean, nullable=False),
    Column("metadata", JSONB(none_as_null=True)),
    Column("replaces", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("revoke_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    ForeignKeyConstraint(["workspace", "principal_id"], ["principals.workspace", "principals.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["workspace", "team_id"], ["teams.workspace", "teams.id"], ondelete="CASCADE"),
)
Index("tokens_principal_idx", tokens.c.workspace, tokens.c.principal_id)
Index("tokens_revoke_at_idx", tokens.c.revoke_at, postgresql_where=tokens.c.revoke_at.is_not(None))
