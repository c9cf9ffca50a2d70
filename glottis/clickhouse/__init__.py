"""ClickHouse's HTTP interface over chDB, on loopback, with a password: `glottis clickhouse`.

chDB is ClickHouse's engine as a library and lets one process hold a data folder. This process is that one, so that
every other one keeps the client that it uses in production, clickhouse-connect over HTTP. It serves what that client
asks for and says no to the rest; it is no replacement for a ClickHouse server. Read `server.py` next, and
docs/adr/0012 for what differs from the real thing.
"""
