"""${message}.

Revision ${up_revision}, after ${down_revision}, ${create_date}.
"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Say here why pods of the release before keep working."""
    ${upgrades if upgrades else "op.execute('')"}
