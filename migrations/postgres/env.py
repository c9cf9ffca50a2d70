"""What Alembic runs for each command: each revision in a transaction of its own, on the connection that we hand over.

The comparison with `control_plane.tables` (to find drift) is a test's business: migrations stand alone, so that an image
that only migrates needs nothing of the control plane.
"""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
