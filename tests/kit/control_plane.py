"""A control plane for tests: the real application over a real socket, with real Postgres and NATS.

`control_plane` starts one on the test's own database and account, with its first owner made. `Watcher` reads the buckets
as a gateway may, so that a test sees what is published and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from nats.aio.client import Client
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from contracts import codec, manifest, sealing
from contracts.prices import PriceBook
from contracts.secret import Secret
from contracts.snapshot import Snapshot, snapshot_of
from contracts.subjects import CONFIG_BUCKET, MANIFEST_KEY, PRICES_KEY, REVOCATIONS_BUCKET, chunk_key
from control_plane.app import create_app
from control_plane.settings import Settings
from glottis.embedded.postgres import APPLICATION_ROLE, OWNER_ROLE, SUPERUSER, Postgres, create_database, ensure_role
from migrations.postgres import upgrade
from tests.kit.processes import free_port
from tests.kit.services import PASSWORD, NatsAccount, PostgresDatabase

OWNER_SECRET = "a-first-owner-secret"
DEADLINE_SECONDS = 10.0


@dataclass(frozen=True)
class Fleet:
    """Keys that gateways hold: fleet key for credentials, the pinned key for manifests."""

    private: Secret
    manifest_public: bytes

    def opened(self, box: Any, purpose: bytes) -> bytes:
        """Return what a sealed secret holds."""
        keys = {sealing.fleet_key_id(sealing.fleet_public_key(self.private)): self.private}
        return sealing.opened(box, keys, purpose).reveal()


@dataclass(frozen=True)
class RunningControlPlane:
    """One that serves. `token`: of the first owner, for the API; `workspace`: its workspace."""

    url: str
    token: str
    workspace: str
    settings: Settings
    fleet: Fleet
    database: PostgresDatabase
    nats: NatsAccount
    app: Any

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        """Return a client of the API; token: another one than the owner's, "" for none."""
        token = self.token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(base_url=f"{self.url}/api/v1", headers=headers, timeout=30, trust_env=False)


def key_line(key: bytes) -> str:
    """Return a key as a line of a key file."""
    return base64.b64encode(key).decode() + "\n"


def make_settings(folder: Path, database: PostgresDatabase, nats: NatsAccount, port: int) -> tuple[Settings, Fleet]:
    """Return settings as `glottis up` would make them, and the fleet's keys."""
    environ, fleet = environment_of(folder, database, nats, port)
    return Settings.from_env(environ), fleet


def environment_of(folder: Path, database: PostgresDatabase, nats: NatsAccount, port: int) -> tuple[dict[str, str], Fleet]:
    """Return the variables of a control plane's process, and the fleet's keys."""
    manifest_key, fleet_key = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    files = {
        "GLOTTIS_KEK_FILE": key_line(os.urandom(32)),
        "GLOTTIS_MANIFEST_KEY_FILE": key_line(manifest_key.private_bytes_raw()),
        "GLOTTIS_FLEET_PUBLIC_KEY_FILE": key_line(fleet_key.public_key().public_bytes_raw()),
        "GLOTTIS_NATS_SEED_FILE": nats.seeds["control-plane"].reveal().decode(),
        "GLOTTIS_OWNER_SECRET_FILE": OWNER_SECRET,
    }
    environ = {
        "GLOTTIS_CONTROL_PLANE_LISTEN": f"127.0.0.1:{port}",
        "GLOTTIS_PUBLIC_URL": f"http://127.0.0.1:{port}",
        "GLOTTIS_DATABASE_URL": database.url,
        "GLOTTIS_NATS_URL": nats.url,
        # The first for files that name an address and never dial it, the second for a provider that a test runs.
        "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": f"http://127.0.0.1:8880,http://127.0.0.1:{free_port()}",
    }
    for name, content in files.items():
        path = folder / name.lower()
        path.write_text(content)
        environ[name] = str(path)
    return environ, Fleet(Secret(fleet_key.private_bytes_raw()), manifest_key.public_key().public_bytes_raw())


@asynccontextmanager
async def serving(settings: Settings, clock: Callable[[], float] = time.time) -> AsyncIterator[Any]:
    """Serve the application until the end of the block; yield it. Any: a FastAPI, whose state tests look into."""
    app = create_app(settings, clock)
    server = uvicorn.Server(
        uvicorn.Config(app, host=settings.host, port=settings.port, log_config=None, access_log=False, ws="none", lifespan="on")
    )
    server.capture_signals = _no_signals  # type: ignore[method-assign]  # the test's process keeps its own
    task = asyncio.ensure_future(server.serve())
    try:
        await until(lambda: server.started or task.done(), "the control plane serves")
        assert server.started, "the control plane did not start"
        await until(lambda: app.state.token_issuer.keys.current, "it has a signing key")
        yield app
    finally:
        server.should_exit = True
        await task


class _no_signals:  # noqa: N801  # stands in for a method
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


async def until(is_so: Callable[[], Any], fact: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Return when it is so; fail at the deadline, naming the fact."""
    deadline = time.monotonic() + deadline_seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not so in {deadline_seconds} s: {fact}"
        await asyncio.sleep(0.01)


async def bootstrap(url: str, workspace: str = "acme", secret: str = OWNER_SECRET) -> str:
    """Make the first owner and return its API token."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.post(
            "/api/v1/bootstrap", json={"secret": secret, "workspace": workspace, "name": "Acme", "owner": "ada"}
        )
        assert answer.status_code == 201, answer.text
        token: str = answer.json()["token"]
        return token


@pytest.fixture(scope="session")
def migrated_template(postgres: Postgres) -> str:
    """The name of a database at this release's schema, to copy from: migrating for each test would cost seconds."""
    name = f"template_{secrets.token_hex(6)}"

    async def make() -> None:
        admin = await asyncpg.connect(postgres.url(SUPERUSER, PASSWORD, "postgres"))
        try:
            for role in (OWNER_ROLE, APPLICATION_ROLE):
                await ensure_role(admin, role, PASSWORD)
            await create_database(admin, name)
        finally:
            await admin.close()
        await upgrade(postgres.url(OWNER_ROLE, PASSWORD, name), APPLICATION_ROLE)

    asyncio.run(make())
    return name


@pytest_asyncio.fixture
async def migrated_database(postgres: Postgres, migrated_template: str) -> AsyncIterator[PostgresDatabase]:
    """A database of this test's own, at this release's schema."""
    name = f"test_{secrets.token_hex(6)}"
    admin = await asyncpg.connect(postgres.url(SUPERUSER, PASSWORD, "postgres"))
    try:
        await create_database(admin, name, migrated_template)
        yield PostgresDatabase(
            name=name,
            url=postgres.url(APPLICATION_ROLE, PASSWORD, name),
            owner_url=postgres.url(OWNER_ROLE, PASSWORD, name),
            superuser_url=postgres.url(SUPERUSER, PASSWORD, name),
        )
    finally:
        await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await admin.close()


@pytest_asyncio.fixture
async def control_plane(
    migrated_database: PostgresDatabase, nats_account: NatsAccount, tmp_path: Path
) -> AsyncIterator[RunningControlPlane]:
    """A control plane with one workspace, `acme`, and its owner, `ada`."""
    port = free_port()
    settings, fleet = make_settings(tmp_path, migrated_database, nats_account, port)
    async with serving(settings) as app:
        url = f"http://127.0.0.1:{port}"
        token = await bootstrap(url)
        yield RunningControlPlane(url, token, "acme", settings, fleet, migrated_database, nats_account, app)


async def second_workspace(running: RunningControlPlane, workspace: str) -> RunningControlPlane:
    """Make another workspace with a new owner secret in the same file; return the same control plane, seen from there."""
    assert running.settings.owner_secret_file is not None
    secret = secrets.token_urlsafe(24)
    running.settings.owner_secret_file.write_text(secret)
    return replace(running, token=await bootstrap(running.url, workspace, secret), workspace=workspace)


class Watcher:
    """Follows the buckets with a gateway's rights. `snapshot`: the newest one that is whole and signed."""

    def __init__(self, client: Client, config: KeyValue, revocations: KeyValue, manifest_public: bytes) -> None:
        self._client = client
        self._config = config
        self._revocations = revocations
        self._manifest_public = manifest_public
        self._tasks: list[asyncio.Task[None]] = []
        self._chunks: dict[str, bytes] = {}
        self._news = asyncio.Event()
        self.snapshot: Snapshot | None = None
        self.revoked: dict[str, bytes] = {}

    async def follow(self) -> None:
        """Begin to follow."""
        self._tasks = [asyncio.ensure_future(self._follow_manifest()), asyncio.ensure_future(self._follow_revocations())]

    async def close(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def until(self, is_so: Callable[[Snapshot], bool], fact: str, deadline_seconds: float = DEADLINE_SECONDS) -> Snapshot:
        """Return the first snapshot of which it is so."""
        async with asyncio.timeout(deadline_seconds):
            while self.snapshot is None or not is_so(self.snapshot):
                self._news.clear()
                try:
                    await self._news.wait()
                except asyncio.CancelledError as cancelled:
                    cancelled.add_note(f"not so in {deadline_seconds} s: {fact}; last: {self.snapshot}")
                    raise
        return self.snapshot

    async def until_revoked(self, key: str, deadline_seconds: float = DEADLINE_SECONDS) -> bytes:
        """Return the value of a revocation's key when it is there."""
        async with asyncio.timeout(deadline_seconds):
            while key not in self.revoked:
                self._news.clear()
                await self._news.wait()
        return self.revoked[key]

    async def prices(self) -> PriceBook:
        """Return the price book as it is now."""
        entry = await self._config.get(PRICES_KEY)
        return codec.decode(entry.value or b"", PriceBook)

    async def _follow_manifest(self) -> None:
        watcher = await self._config.watch(MANIFEST_KEY)
        async for entry in watcher:
            if entry is None:
                continue
            opened = manifest.opened(entry.value, [self._manifest_public])
            try:
                chunks = [await self._chunk(name) for name in opened.chunks]
            except KeyNotFoundError:
                continue  # as a pod does: a snapshot that is not whole is not acted on
            self.snapshot = snapshot_of(opened.revision, opened.created_at_ms, chunks)
            self._news.set()

    async def _chunk(self, name: str) -> bytes:
        if name not in self._chunks:
            found = await self._config.get(chunk_key(name))
            assert found.value is not None
            assert manifest.chunk_name(found.value) == name
            self._chunks[name] = found.value
        return self._chunks[name]

    async def _follow_revocations(self) -> None:
        watcher = await self._revocations.watch(">")
        async for entry in watcher:
            if entry is not None and entry.value:
                self.revoked[entry.key] = entry.value
                self._news.set()


@asynccontextmanager
async def watching(running: RunningControlPlane) -> AsyncIterator[Watcher]:
    """Follow the buckets until the end of the block."""
    client = await running.nats.connect("gateway")
    streams = client.jetstream()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            config = await streams.key_value(CONFIG_BUCKET)
            revocations = await streams.key_value(REVOCATIONS_BUCKET)
            break
        except Exception:
            assert time.monotonic() < deadline, "the buckets were not made"
            await asyncio.sleep(0.02)
    watcher = Watcher(client, config, revocations, running.fleet.manifest_public)
    await watcher.follow()
    try:
        yield watcher
    finally:
        await watcher.close()


__all__ = ["RunningControlPlane", "Watcher", "bootstrap", "control_plane", "second_workspace", "serving", "until", "watching"]
