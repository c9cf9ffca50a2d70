"""Where a workspace's spans go besides ClickHouse."""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import JSONB

from control_plane.tables.system import metadata

export_targets = Table(
    "export_targets",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("protocol", Text, nullable=False),
    Column("compression", Text, nullable=False),
    Column("headers", JSONB, nullable=False),
    Column("secret", LargeBinary),
    Column("sealed", LargeBinary),
    Column("sealed_for", Text),
    Column("secret_version", Integer, nullable=False, server_default="0"),
    Column("ca_pem", LargeBinary),
    Column("resource_attributes", JSONB, nullable=False),
    Column("timeout_seconds", Integer, nullable=False),
    Column("is_disabled", Boolean, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(["workspace"], ["workspaces.workspace"], ondelete="CASCADE"),
    UniqueConstraint("workspace", "name"),
    CheckConstraint("protocol IN ('grpc', 'http/protobuf')", name="protocol"),
    CheckConstraint("compression IN ('none', 'gzip')", name="compression"),
)
