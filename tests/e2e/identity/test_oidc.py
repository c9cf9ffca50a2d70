"""Tokens of a real OpenID Connect provider (npm's `oidc-provider`): discovered, rotated under a flood, away.

Two providers run: one for the tests that need it alive, one that is stopped. Forged tokens are the tests' own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from glottis.embedded.postgres import Postgres
from glottis.processes import Command
from tests.kit import sdks
from tests.kit.installation import Installation, installed
from tests.kit.processes import Child
from tests.kit.services import NatsAccount, service_folder
from tests.kit.waiting import until

pytestmark = pytest.mark.timeout(240)

DEADLINE = 30.0


@dataclass
class Idp:
    """A running provider. `name`: of the issuer that stands for it."""

    name: str
    child: Child

    @property
    def issuer(self) -> str:
        """Return its address."""
        return next(line.split(" ")[1] for line in self.child.output.splitlines() if line.startswith("issuer "))

    async def ask(self, method: str, path: str, **form: str) -> Any:
        """Return the JSON that it answers."""
        async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE) as client:
            answer = await client.request(method, self.issuer + path, data=form or None)
        assert answer.is_success, answer.text
        return answer.json()

    async def token(self) -> str:
        """Return an access token for the gateway, by the client credentials grant."""
        form = {"grant_type": "client_credentials", "client_id": "agent", "client_secret": "of the tests"}
        token: str = (await self.ask("POST", "/token", **form))["access_token"]
        return token


@dataclass
class Setting:
    """What runs."""

    installation: Installation
    living: Idp
    stopped: Idp

    @property
    def url(self) -> str:
        """Return an endpoint that every caller of the tests may ask."""
        return f"{self.installation.gateways[0].url}/cartesia/voices"


@pytest.fixture(scope="module")
def setting(postgres: Postgres, migrated_template: str, nats_pool: list[NatsAccount]) -> Iterator[Setting]:
    folder = sdks.folder_of("js-oidc")
    script = Path(sdks.__file__).parents[1] / "sdks" / "oidc.mjs"
    with ExitStack() as stack:
        logs = stack.enter_context(service_folder("oidc"))
        idps = []
        for name in ("living", "stopped"):
            command = Command((sdks.node(), str(script)), {"PATH": os.environ["PATH"]}, folder)
            idps.append(Idp(name, stack.enter_context(Child(command, logs / f"{name}.log"))))
            idps[-1].child.wait_until(lambda: _has_started(idps[-1]))
        origins = tuple(idp.issuer for idp in idps)
        running = stack.enter_context(installed(postgres, migrated_template, nats_pool.pop(), 1, None, origins))
        asyncio.run(_register(running, idps))
        yield Setting(running, *idps)


async def _has_started(idp: Idp) -> bool:
    return "issuer " in idp.child.output


async def _register(installation: Installation, idps: list[Idp]) -> None:
    caller = await installation.caller()
    for idp in idps:
        issuer = {"name": idp.name, "issuer": idp.issuer, "audiences": ["glottis"], "algorithms": ["ES256"]}
        await installation.call("POST", "/issuers", issuer)
        await installation.call("POST", "/users", {"name": f"user-{idp.name}", "issuer": idp.name, "subject": "agent"})
        await installation.call("POST", f"/accounts/{caller.account}/collaborators", {"subject": f"user:user-{idp.name}"})


async def _answer(setting: Setting, token: str) -> tuple[int, str]:
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE) as client:
        answer = await client.get(setting.url, headers={"Authorization": f"Bearer {token}"})
    return answer.status_code, "" if answer.is_success else answer.json()["error_code"]


async def _served(setting: Setting, token: str) -> None:
    """Wait until the gateway knows issuer and user."""
    async with asyncio.timeout(DEADLINE):
        while (await _answer(setting, token))[0] != 200:
            await asyncio.sleep(0.05)


def _forged(issuer: str) -> str:
    """Return a token that names a key which nobody has."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {"iss": issuer, "aud": "glottis", "sub": "agent", "exp": int(time.time()) + 600}
    signature = base64.urlsafe_b64encode(secrets.token_bytes(64)).rstrip(b"=").decode()
    return f"{part({'alg': 'ES256', 'typ': 'at+jwt', 'kid': secrets.token_hex(8)})}.{part(claims)}.{signature}"


async def test_a_discovered_providers_access_tokens_open_the_gateway_and_its_id_tokens_do_not(setting: Setting) -> None:
    await _served(setting, await setting.living.token())

    id_token = (await setting.living.ask("POST", "/test/id-token"))["token"]

    assert await _answer(setting, id_token) == (401, "issuer_unknown")


async def test_a_rotation_refuses_nobody_even_while_made_up_keys_flood_in(
    setting: Setting, record_property: Callable[[str, object], None]
) -> None:
    idp = setting.living
    old = await idp.token()
    await _served(setting, old)
    refused: set[tuple[int, str]] = set()

    async def flood() -> None:
        while True:
            refused.add(await _answer(setting, _forged(idp.issuer)))

    floods = [asyncio.ensure_future(flood()) for _ in range(20)]
    began, before = time.monotonic(), (await idp.ask("GET", "/test/fetches"))["keys"]
    await idp.ask("POST", "/test/rotate")
    new = await idp.token()
    asked = time.monotonic()
    answers = await asyncio.gather(_answer(setting, new), _answer(setting, old))
    record_property("seconds_to_the_first_answer_of_a_new_key", round(time.monotonic() - asked, 2))
    await until(lambda: bool(refused), DEADLINE)
    for task in floods:
        task.cancel()
    await asyncio.gather(*floods, return_exceptions=True)
    fetched = (await idp.ask("GET", "/test/fetches"))["keys"] - before

    assert answers == [(200, ""), (200, "")]
    assert refused == {(401, "key_unknown")}
    assert fetched <= 2 + (time.monotonic() - began) / 10


async def test_tokens_are_good_while_their_provider_is_away_and_the_age_of_its_keys_shows(setting: Setting) -> None:
    idp, gateway = setting.stopped, setting.installation.gateways[0]
    seen, unseen = await idp.token(), await idp.token()
    await _served(setting, seen)
    issuer = idp.issuer

    idp.child.stop()
    began = time.monotonic()
    answers = [await _answer(setting, token) for token in (seen, unseen)]
    async with asyncio.timeout(DEADLINE):
        while await gateway.metric("glottis_gateway_key_set_age_seconds") < 1:
            await asyncio.sleep(0.1)

    assert answers == [(200, ""), (200, "")]
    assert await gateway.metric("glottis_gateway_key_set_age_seconds") >= min(1, time.monotonic() - began)
    # A key that cannot be asked for is refused in the end, and holds nobody else up.
    assert await _answer(setting, _forged(issuer)) == (401, "key_unknown")
    assert await _answer(setting, unseen) == (200, "")
