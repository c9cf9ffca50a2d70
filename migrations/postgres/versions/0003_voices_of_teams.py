"""A team's list of approved voices.

A new column that is null: pods and control planes of the release before do not know it and are not touched. One table a
migration: two in one transaction are a deadlock with whatever takes them the other way round.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; null means any voice."""
    op.execute("ALTER TABLE teams ADD COLUMN allowed_voices text[]")
