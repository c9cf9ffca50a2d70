"""Tables of the deployment itself; they hold nothing of a tenant but the outbox, whose rows name changed ids.

`outbox`: what a transaction changed, written by triggers (and by services for revocations), deleted once published.
`publication`: the one row with the newest revision. `signing_keys`: the token issuer's key pairs, private half encrypted.
"""

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Identity, LargeBinary, MetaData, Table, Text, func
from sqlalchemy.dialects.postgresql import ARRAY

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("workspace", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("ids", ARRAY(Text), nullable=False),
    Column("payload", LargeBinary),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

publication = Table(
    "publication",
    metadata,
    Column("is_only", Boolean, primary_key=True, server_default="true"),
    Column("revision", BigInteger, nullable=False),
    Column("published_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("algorithm", Text, nullable=False),
    Column("private", LargeBinary, nullable=False),
    Column("public", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("retired_at", DateTime(timezone=True)),
)

owner_secrets = Table(
    "owner_secrets",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("used_at", DateTime(timezone=True), nullable=False),
)
