"""Postgres migrations: how the database of an older release becomes this release's.

Rules: a migration runs while pods of the release before still work, so it adds before it takes away; it waits for locks
only briefly and gives up rather than queue the application behind it. `upgrade` is what `glottis migrate` calls; it needs
the owner's role. What the application may touch is granted here, to a role that owns nothing and bypasses nothing.
"""

from migrations.postgres.upgrade import MigrationFailed, current_revision, newest_revision, upgrade

__all__ = ["MigrationFailed", "current_revision", "newest_revision", "upgrade"]
