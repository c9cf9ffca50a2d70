"""Where calls go and who may send them there: provider accounts, credentials, models, grants, prices.

A grant or a narrowing names its subject by a reference (`principal_id` or `team_id`, exactly one), so that a deleted
principal or team leaves nothing behind. `is_narrowed` stays true then: an empty narrowing means nobody.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import ARRAY

from control_plane.tables.system import metadata

accounts = Table(
    "accounts",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("credential_scheme", Text, nullable=False),
    Column("credential_version", Integer, nullable=False, server_default="0"),
    Column("priority", Integer, nullable=False),
    Column("ca_pem", LargeBinary),
    Column("tls_server_name", Text),
    Column("allowed_voices", ARRAY(Text)),
    Column("forwards_trace_headers", Boolean, nullable=False),
    Column("region", Text, nullable=False),
    Column("plan", Text, nullable=False),
    Column("is_disabled", Boolean, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(["workspace"], ["workspaces.workspace"], ondelete="CASCADE"),
    UniqueConstraint("workspace", "name"),
)

credentials = Table(
    "credentials",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("account_id", Text, primary_key=True),
    Column("slot", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("secret", LargeBinary, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("sealed_for", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(["workspace", "account_id"], ["accounts.workspace", "accounts.id"], ondelete="CASCADE"),
    CheckConstraint("slot IN ('active', 'retiring')", name="slot"),
)

models = Table(
    "models",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("account_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("priority", Integer),
    Column("is_narrowed", Boolean, nullable=False, server_default="false"),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(["workspace", "account_id"], ["accounts.workspace", "accounts.id"], ondelete="CASCADE"),
    UniqueConstraint("workspace", "account_id", "name"),
    CheckConstraint("type IN ('text-to-speech', 'speech-to-text')", name="type"),
)

model_subjects = Table(
    "model_subjects",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("model_id", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("principal_id", Text),
    Column("team_id", Text),
    ForeignKeyConstraint(["workspace", "model_id"], ["models.workspace", "models.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["workspace", "principal_id"], ["principals.workspace", "principals.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["workspace", "team_id"], ["teams.workspace", "teams.id"], ondelete="CASCADE"),
    CheckConstraint("(principal_id IS NULL) <> (team_id IS NULL)", name="subject"),
)
Index("model_subjects_principal_idx", model_subjects.c.workspace, model_subjects.c.principal_id)
Index("model_subjects_team_idx", model_subjects.c.workspace, model_subjects.c.team_id)

grants = Table(
    "grants",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("account_id", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("principal_id", Text),
    Column("team_id", Text),
    Column("role", Text, nullable=False),
    Column("operations", ARRAY(Text), nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(["workspace", "account_id"], ["accounts.workspace", "accounts.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["workspace", "principal_id"], ["principals.workspace", "principals.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["workspace", "team_id"], ["teams.workspace", "teams.id"], ondelete="CASCADE"),
    UniqueConstraint("workspace", "account_id", "subject"),
    CheckConstraint("role IN ('manager', 'user')", name="role"),
    CheckConstraint("(principal_id IS NULL) <> (team_id IS NULL)", name="subject"),
)
Index("grants_principal_idx", grants.c.workspace, grants.c.principal_id)
Index("grants_team_idx", grants.c.workspace, grants.c.team_id)

prices = Table(
    "prices",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("account_id", Text),
    Column("model", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("price", Numeric, nullable=False),
    Column("currency", Text, nullable=False),
    Column("effective_ms", BigInteger, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(["workspace"], ["workspaces.workspace"], ondelete="CASCADE"),
    ForeignKeyConstraint(["workspace", "account_id"], ["accounts.workspace", "accounts.id"], ondelete="CASCADE"),
    UniqueConstraint(
        "workspace",
        "provider",
        "account_id",
        "model",
        "unit",
        "effective_ms",
        name="prices_one_at_a_time_key",
        postgresql_nulls_not_distinct=True,
    ),
)
