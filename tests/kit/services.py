"""Postgres, NATS and ClickHouse for the whole suite: each started once a session, each test in a corner of its own.

Postgres: a database a test. NATS: an account a test (streams, buckets and subjects of one account are invisible to the
others, so the real names can be used). ClickHouse: a database a test. A test that kills or restarts a server starts
its own with `postgres_server`, `nats_server` or `clickhouse_server` from here.

Fixtures: postgres_database, nats_account, tls_nats, clickhouse_database. They come with tests/conftest.py.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
import clickhouse_connect
import clickhouse_connect.driver.client
import nats
import nats.aio.client
import nkeys
import pytest
import pytest_asyncio

from contracts.secret import Secret
from contracts.subjects import ROLES, Permissions
from glottis.certificates import ensure_certificates
from glottis.embedded.clickhouse import HOST, USER, Clickhouse
from glottis.embedded.nats import Nats, NatsUser, locate_program
from glottis.embedded.postgres import (
    APPLICATION_ROLE,
    OWNER_ROLE,
    SUPERUSER,
    Postgres,
    create_database,
    ensure_role,
    locate_programs,
)
from glottis.keys import nats_public_key
from glottis.processes import Command, unprivileged_identity
from tests.kit.processes import Child, free_port

PASSWORD: Final = Secret("test-password")
ADMIN: Final = "admin"
"""the NATS user of every account that may do everything: to make, look into and delete what a test needs"""

# Tests run one after the other; a few accounts more than one, so that a test may hold several.
_NATS_ACCOUNTS: Final = 8
_PERMISSIONS: Final = {**ROLES, ADMIN: Permissions(inbox="_INBOX_admin", publish=(">",), subscribe=(">",))}


@contextmanager
def service_folder(name: str) -> Iterator[Path]:
    """A folder that an unprivileged user can reach: pytest's own are closed to others, and Postgres may be another."""
    folder = Path(tempfile.mkdtemp(prefix=f"glottis-{name}-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    """The environment for a service: nothing of the developer's but where programs are."""
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


@contextmanager
def postgres_server(folder: Path, *, port: int | None = None, durable: bool = False) -> Iterator[tuple[Postgres, Child]]:
    """A running Postgres with its data in `folder`; an existing one is taken up again."""
    identity = unprivileged_identity()
    server = Postgres(
        programs=locate_programs(identity),
        home=folder / "postgres",
        port=port or free_port(),
        superuser_password=PASSWORD,
        identity=identity,
        environment=environment(),
        durable=durable,
    )
    server.prepare()
    with Child(server.command(), folder / "postgres.log") as child:
        child.wait_until(server.is_ready)
        yield server, child


@dataclass(frozen=True)
class PostgresDatabase:
    """An empty database: url: the application's role; owner_url: the role that migrates; superuser_url: for spying."""

    name: str
    url: str
    owner_url: str
    superuser_url: str


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's Postgres server."""
    with service_folder("postgres") as folder, postgres_server(folder) as (server, _):
        yield server


@pytest_asyncio.fixture
async def postgres_database(postgres: Postgres) -> AsyncIterator[PostgresDatabase]:
    """An empty database of this test's own, with the two roles."""
    name = f"test_{secrets.token_hex(6)}"
    admin = await asyncpg.connect(postgres.url(SUPERUSER, PASSWORD, "postgres"))
    try:
        for role in (OWNER_ROLE, APPLICATION_ROLE):
            await ensure_role(admin, role, PASSWORD)
        await create_database(admin, name)
        yield PostgresDatabase(
            name=name,
            url=postgres.url(APPLICATION_ROLE, PASSWORD, name),
            owner_url=postgres.url(OWNER_ROLE, PASSWORD, name),
            superuser_url=postgres.url(SUPERUSER, PASSWORD, name),
        )
    finally:
        await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await admin.close()


@dataclass(frozen=True)
class NatsAccount:
    """An account without streams; seeds: role of `contracts.subjects` (and `admin`) to its user's nkey seed."""

    name: str
    url: str
    seeds: Mapping[str, Secret]

    async def connect(self, role: str = ADMIN) -> nats.aio.client.Client:
        """A client of this account that acts as `role`. The caller closes it."""
        return await nats.connect(
            self.url,
            nkeys_seed_str=self.seeds[role].reveal().decode(),
            inbox_prefix=_PERMISSIONS[role].inbox.encode(),
            allow_reconnect=False,
        )


def nats_seeds() -> dict[str, Secret]:
    """Return a new nkey seed for each role of `contracts.subjects`, and for the admin."""
    return {role: Secret(nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)) for role in _PERMISSIONS}


@contextmanager
def nats_server(
    folder: Path, accounts: Mapping[str, Mapping[str, Secret]], *, port: int | None = None
) -> Iterator[tuple[Nats, Child]]:
    """A running NATS server with its files in `folder`; accounts: name to the seeds of its users."""
    server = Nats(
        program=locate_program(),
        home=folder / "nats",
        port=port or free_port(),
        accounts={
            name: [
                NatsUser(nkeys.from_seed(seed.reveal()).public_key.decode(), _PERMISSIONS[role]) for role, seed in seeds.items()
            ]
            for name, seeds in accounts.items()
        },
        environment=environment(),
    )
    server.prepare()
    seed = next(iter(accounts.values()))[ADMIN]
    with Child(server.command(), folder / "nats.log") as child:
        child.wait_until(lambda: server.is_ready(seed, _PERMISSIONS[ADMIN]))
        yield server, child


@dataclass(frozen=True)
class TlsNats:
    """A NATS server that speaks TLS only. authority: the PEM file that a client needs; seeds: as an account's."""

    url: str
    authority: Path
    seeds: Mapping[str, Secret]


@contextmanager
def tls_nats_server(folder: Path) -> Iterator[TlsNats]:
    """A running NATS server with a certificate of an authority of its own, as a cluster's NATS has it."""
    certificates = ensure_certificates(folder, datetime.now(UTC))
    seeds, port = nats_seeds(), free_port()
    users = [
        {
            "nkey": nats_public_key(seed),
            "permissions": {
                "publish": {"allow": list(_PERMISSIONS[role].publish)},
                "subscribe": {"allow": list(_PERMISSIONS[role].subscribe)},
            },
        }
        for role, seed in seeds.items()
    ]
    configuration = folder / "nats-tls.conf"
    configuration.write_text(
        json.dumps(
            {
                "listen": f"127.0.0.1:{port}",
                "jetstream": {"store_dir": str(folder / "nats-tls")},
                "tls": {"cert_file": str(certificates.server), "key_file": str(certificates.server_key), "timeout": 5},
                "accounts": {"A": {"jetstream": "enabled", "users": users}},
            }
        )
    )
    command = Command((str(locate_program()), "-c", str(configuration)), environment(), folder)
    with Child(command, folder / "nats-tls.log") as child:

        async def is_ready() -> bool:
            return "Server is ready" in child.output

        child.wait_until(is_ready)
        yield TlsNats(f"tls://127.0.0.1:{port}", certificates.authority, seeds)


@pytest.fixture
def tls_nats(tmp_path: Path) -> Iterator[TlsNats]:
    """A NATS server of this test's own that speaks TLS only."""
    with tls_nats_server(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def nats_pool() -> Iterator[list[NatsAccount]]:
    """The session's NATS server, as the accounts that no test holds."""
    accounts = {f"TEST{number}": nats_seeds() for number in range(_NATS_ACCOUNTS)}
    with service_folder("nats") as folder, nats_server(folder, accounts) as (server, _):
        yield [NatsAccount(name, server.url, seeds) for name, seeds in accounts.items()]


@pytest_asyncio.fixture
async def nats_account(nats_pool: list[NatsAccount]) -> AsyncIterator[NatsAccount]:
    """An account of this test's own; its streams and buckets are deleted afterwards."""
    account = nats_pool.pop(0)
    try:
        yield account
    finally:
        client = await account.connect()
        streams = client.jetstream()
        for stream in await streams.streams_info():
            await streams.delete_stream(stream.config.name)
        await client.close()
        nats_pool.append(account)


@contextmanager
def clickhouse_server(folder: Path, *, port: int | None = None) -> Iterator[tuple[Clickhouse, Child]]:
    """A running ClickHouse with its data in `folder`; an existing one is taken up again."""
    password_file = folder / "clickhouse-password"
    password_file.write_bytes(PASSWORD.reveal())
    server = Clickhouse(
        home=folder / "clickhouse",
        port=port or free_port(),
        password_file=password_file,
        environment={**environment(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    with Child(server.command(), folder / "clickhouse.log") as child:
        child.wait_until(server.is_ready)
        yield server, child


@dataclass(frozen=True)
class ClickhouseDatabase:
    """An empty ClickHouse database; url: http://host:port; password_file: for settings that want a file."""

    name: str
    url: str
    port: int
    user: str
    password: Secret
    password_file: Path

    def client(self, **options: Any) -> clickhouse_connect.driver.client.Client:
        """clickhouse-connect's real HTTP client on this database, with further options of its own (hence Any)."""
        return clickhouse_connect.get_client(
            host=HOST,
            port=self.port,
            username=self.user,
            password=self.password.reveal().decode(),
            **{"database": self.name, **options},
        )


@pytest.fixture(scope="session")
def clickhouse() -> Iterator[Clickhouse]:
    """The session's ClickHouse server."""
    with service_folder("clickhouse") as folder, clickhouse_server(folder) as (server, _):
        yield server


@pytest.fixture
def clickhouse_database(clickhouse: Clickhouse) -> Iterator[ClickhouseDatabase]:
    """An empty database of this test's own."""
    database = ClickhouseDatabase(
        name=f"test_{secrets.token_hex(6)}",
        url=clickhouse.url,
        port=clickhouse.port,
        user=USER,
        password=PASSWORD,
        password_file=clickhouse.password_file,
    )
    admin = database.client(database="default")
    admin.command(f"CREATE DATABASE {database.name}")
    try:
        yield database
    finally:
        admin.command(f"DROP DATABASE {database.name}")
        admin.close()
