"""Export targets: where a workspace's spans go besides ClickHouse.

A new table alone: pods of the release before do not know it and are not touched. A publisher of that release would pass
over its outbox rows; the one of this release reads the whole table when it takes the lead.
"""

from alembic import context, op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table with its walls, its triggers and the application's rights."""
    role = context.config.attributes["application_role"]
    op.execute(
        """
        CREATE TABLE export_targets (
          workspace text NOT NULL REFERENCES workspaces ON DELETE CASCADE,
          id text NOT NULL,
          name text NOT NULL,
          endpoint text NOT NULL,
          protocol text NOT NULL CONSTRAINT export_targets_protocol_check CHECK (protocol IN ('grpc', 'http/protobuf')),
          compression text NOT NULL CONSTRAINT export_targets_compression_check CHECK (compression IN ('none', 'gzip')),
          headers jsonb NOT NULL,
          secret bytea,
          sealed bytea,
          sealed_for text,
          secret_version integer NOT NULL DEFAULT 0,
          ca_pem bytea,
          resource_attributes jsonb NOT NULL,
          timeout_seconds integer NOT NULL,
          is_disabled boolean NOT NULL,
          version integer NOT NULL DEFAULT 1,
          created_at timestamptz NOT NULL,
          PRIMARY KEY (workspace, id),
          UNIQUE (workspace, name)
        )
        """
    )
    op.execute("ALTER TABLE export_targets ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE export_targets FORCE ROW LEVEL SECURITY")
    op.execute(
        "CREATE POLICY own_workspace ON export_targets USING (workspace = glottis_workspace()) "
        "WITH CHECK (workspace = glottis_workspace())"
    )
    op.execute("CREATE POLICY publisher_reads ON export_targets FOR SELECT USING (glottis_is_publisher())")
    for event, side in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
        op.execute(
            f"CREATE TRIGGER export_targets_{event.lower()}_is_noted AFTER {event} ON export_targets "
            f"REFERENCING {side} TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION glottis_note_change('exports', 'id')"
        )
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON export_targets TO {role}")
