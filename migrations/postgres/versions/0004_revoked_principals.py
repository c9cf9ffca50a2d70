"""Since when a principal's tokens are revoked.

A new column that is null: pods and control planes of the release before do not know it and are not touched. It came with
0003 for a while, before there was a release; hence the question whether it is there.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; null means never."""
    op.execute("ALTER TABLE principals ADD COLUMN IF NOT EXISTS tokens_revoked_at timestamptz")
