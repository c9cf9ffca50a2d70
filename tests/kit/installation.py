"""A whole installation for a module of tests: control plane and gateways as processes, on the session's Postgres and NATS.

Started once, used by many tests: each makes its own account, model, caller and token through the API, so that what one
withdraws is nobody else's. Everything here is synchronous but the client of the API; a module's fixture is

    @pytest.fixture(scope="module")
    def installation(postgres, migrated_template, nats_pool): ...
        with installed(...) as running: yield running
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from glottis.embedded.postgres import APPLICATION_ROLE, OWNER_ROLE, SUPERUSER, Postgres, create_database
from glottis.processes import Command
from tests.kit.control_plane import Fleet, bootstrap, environment_of
from tests.kit.gateway import ROOT, GatewayProcess, gateway_command
from tests.kit.processes import Child, free_port
from tests.kit.provider import Provider
from tests.kit.services import PASSWORD, NatsAccount, PostgresDatabase, service_folder

CREDENTIAL = "sk_car_installation_0123456789abcdef"
_READY_SECONDS = 60.0


@dataclass
class Installation:
    """What runs. `token`: the owner's, for the API."""

    url: str
    token: str
    provider: Provider
    gateways: list[GatewayProcess]
    control_plane: Child
    database: PostgresDatabase
    nats: NatsAccount
    folder: Path
    fleet: Fleet
    _names: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        """Return a client of the API; token: another one than the owner's, "" for none."""
        token = self.token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(base_url=f"{self.url}/api/v1", headers=headers, timeout=30, trust_env=False)

    async def call(self, method: str, path: str, body: Any = None, status: int | None = None) -> Any:
        """Ask the API as the owner; return the answer's JSON. Any: JSON."""
        async with self.client() as client:
            answer = await client.request(method, path, json=body)
        assert answer.is_success if status is None else answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def caller(self, **token: Any) -> Caller:
        """Make an account with a model, a service account that may use it, and its token. token: narrowings of the token."""
        number = next(self._names)
        account, model, name = f"account-{number}", f"sonic-{number}", f"agent-{number}"
        at = {"provider": "cartesia", "origin": self.provider.origin, "credential": CREDENTIAL}
        made = await self.call("POST", "/accounts", {"name": account, **at})
        await self.call("POST", f"/accounts/{account}/models", {"name": model, "type": "text-to-speech"})
        principal = await self.call("POST", "/service-accounts", {"name": name})
        await self.call("POST", f"/accounts/{account}/collaborators", {"subject": f"service_account:{name}"})
        minted = await self.call("POST", "/tokens", {"principal": f"service_account:{name}", **token})
        caller = Caller(account, made["id"], model, name, principal["id"], minted["id"], minted["token"])
        for gateway in self.gateways:
            await caller.is_served_by(gateway)
        return caller


@dataclass(frozen=True)
class Caller:
    """A service account with an account and a model of its own."""

    account: str
    account_id: str
    model: str
    name: str
    principal_id: str
    token_id: str
    token: str

    async def is_served_by(self, gateway: GatewayProcess, seconds: float = 20.0) -> None:
        """Wait until the gateway admits the token."""
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(seconds):
            while True:
                answer = await client.get(f"{gateway.url}/cartesia/voices", headers={"X-API-Key": self.token})
                if answer.status_code == 200:
                    return
                await asyncio.sleep(0.02)


@contextmanager
def installed(
    postgres: Postgres,
    template: str,
    account: NatsAccount,
    pods: int,
    control_plane_variables: Mapping[str, str] | None = None,
    more_origins: tuple[str, ...] = (),
    **gateway_variables: str,
) -> Iterator[Installation]:
    """Start everything; variables: further ones of the processes; more_origins: may be private, beside the provider's."""
    with ExitStack() as stack:
        folder = stack.enter_context(service_folder("installation"))
        provider = stack.enter_context(Provider().running())
        database = stack.enter_context(_database(postgres, template))
        environment, fleet = environment_of(folder, database, account, free_port())
        url = environment["GLOTTIS_PUBLIC_URL"]
        allowed = ",".join((provider.origin, url, *more_origins))
        environment |= {"GLOTTIS_ALLOWED_PRIVATE_ORIGINS": allowed, **(control_plane_variables or {})}
        child = stack.enter_context(Child(service_command("control-plane", environment, folder), folder / "control-plane.log"))

        async def is_ready() -> bool:
            async with httpx.AsyncClient(trust_env=False) as client:
                try:
                    return (await client.get(f"{url}/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

        child.wait_until(is_ready, _READY_SECONDS)
        token = asyncio.run(bootstrap(url))
        gateways = [
            stack.enter_context(_gateway(folder / f"pod-{number}", account, fleet, allowed, gateway_variables))
            for number in range(pods)
        ]
        for gateway in gateways:
            gateway.child.wait_until(gateway.is_ready, _READY_SECONDS)
        yield Installation(url, token, provider, gateways, child, database, account, folder, fleet)


def service_command(name: str, variables: Mapping[str, str], folder: Path) -> Command:
    """Return the command that starts a part of `glottis` with these variables and nothing else of the environment."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "GLOTTIS_LOG_FORMAT": "json", **variables}
    return Command((sys.executable, "-m", "glottis", name), environment, folder)


@contextmanager
def _gateway(
    folder: Path, account: NatsAccount, fleet: Fleet, allowed: str, variables: Mapping[str, str]
) -> Iterator[GatewayProcess]:
    folder.mkdir()
    files = {
        "GLOTTIS_MANIFEST_PUBLIC_KEY_FILE": base64.b64encode(fleet.manifest_public),
        "GLOTTIS_FLEET_KEY_FILE": base64.b64encode(fleet.private.reveal()),
        "GLOTTIS_NATS_SEED_FILE": account.seeds["gateway"].reveal(),
    }
    environment = {
        "GLOTTIS_POD_NAME": folder.name,
        "GLOTTIS_NATS_URL": account.url,
        "GLOTTIS_GATEWAY_SPOOL_DIR": str(folder / "spool"),
        "GLOTTIS_GATEWAY_SPOOL_BYTES": str(16 * 1024 * 1024),
        "GLOTTIS_GATEWAY_STATE_DIR": str(folder / "state"),
        "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": allowed,
        **variables,
    }
    for name, content in files.items():
        path = folder / name.lower()
        path.write_bytes(content)
        environment[name] = str(path)
    with Child(gateway_command(folder, environment), folder / "gateway.log") as child:
        yield GatewayProcess(child)


@contextmanager
def _database(postgres: Postgres, template: str) -> Iterator[PostgresDatabase]:
    name = f"test_{secrets.token_hex(6)}"

    async def ask(statement: str) -> None:
        admin = await asyncpg.connect(postgres.url(SUPERUSER, PASSWORD, "postgres"))
        try:
            if statement:
                await admin.execute(statement)
            else:
                await create_database(admin, name, template)
        finally:
            await admin.close()

    asyncio.run(ask(""))
    try:
        yield PostgresDatabase(
            name=name,
            url=postgres.url(APPLICATION_ROLE, PASSWORD, name),
            owner_url=postgres.url(OWNER_ROLE, PASSWORD, name),
            superuser_url=postgres.url(SUPERUSER, PASSWORD, name),
        )
    finally:
        asyncio.run(ask(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
