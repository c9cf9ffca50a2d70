"""Usage and span events from the bus into ClickHouse: priced, counted once, rolled up.

A worker of its own: it imports nothing of the web side. Read next: `main` for the process, `usage` for the money.
"""
