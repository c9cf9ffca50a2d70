"""A team's list of approved voices, and since when a principal's tokens are revoked.

New columns that are null: pods and control planes of the release before do not know them and are not touched.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; null means any voice, and never."""
    op.execute("ALTER TABLE teams ADD COLUMN allowed_voices text[]")
    op.execute("ALTER TABLE principals ADD COLUMN tokens_revoked_at timestamptz")
