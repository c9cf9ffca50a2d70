"""What a token's exchanges are annotated with.

A new column that is null: control planes of the release before do not know it, and their tokens carry no annotations.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; null means none."""
    op.execute("ALTER TABLE tokens ADD COLUMN metadata jsonb")
