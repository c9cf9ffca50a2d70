"""From the first owner to a signed snapshot: what an installation needs before its first call."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import jwt
import yaml

from contracts import sealing
from contracts.prices import Price
from contracts.snapshot import Issuer
from policy.workspace_file import parse, to_document
from tests.kit.control_plane import OWNER_SECRET, RunningControlPlane, watching

FILE = """\
version: 1
workspace: {id: acme, name: Acme, defaults: {kokoro: kokoro-local}}
teams:
  - name: voice
users:
  - {name: grace, email: grace@example.com, teams: [voice]}
service_accounts:
  - {name: phone-agent, teams: [voice]}
accounts:
  - name: kokoro-local
    provider: kokoro
    origin: http://127.0.0.1:8880
    credential: env:KOKORO_KEY
    collaborators: [{subject: team:voice}]
    models: [{name: kokoro-82m, type: text-to-speech}]
prices:
  - {provider: kokoro, unit: characters, price: 0.000002}
"""


async def applied(running: RunningControlPlane, text: str = FILE, **options: Any) -> Any:
    file = parse(text, ("http://127.0.0.1:8880",))
    body = {
        "document": to_document(file),
        "material": {"accounts.kokoro-local.credential.active": "kk_secret_1"},
        **options,
    }
    async with running.client() as client:
        answer = await client.post("/apply", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_applied_file_is_what_gateways_read(control_plane: RunningControlPlane) -> None:
    async with watching(control_plane) as watcher:
        await applied(control_plane)
        snapshot = await watcher.until(lambda snapshot: len(snapshot.grants) == 1, "the grant is published")
    account = snapshot.accounts[0]
    team = snapshot.teams[0]
    assert (account.name, account.provider, account.origin) == ("kokoro-local", "kokoro", "http://127.0.0.1:8880")
    assert [(model.name, model.account, model.only) for model in snapshot.models] == [("kokoro-82m", account.id, None)]
    assert [(grant.account, grant.subject, grant.role) for grant in snapshot.grants] == [(account.id, f"team:{team.id}", "user")]
    assert {principal.name: principal.teams for principal in snapshot.principals} == {
        "ada": (),
        "grace": (team.id,),
        "phone-agent": (team.id,),
    }
    assert snapshot.workspaces[0].default_accounts == {"kokoro": account.id}
    credential = account.credentials[0]
    purpose = sealing.credential_purpose("acme", account.id, credential.sealed.version, account.origin)
    assert control_plane.fleet.opened(credential.sealed, purpose) == b"kk_secret_1"


async def test_prices_are_published_on_their_own_key(control_plane: RunningControlPlane) -> None:
    async with watching(control_plane) as watcher:
        await applied(control_plane)
        await watcher.until(lambda snapshot: len(snapshot.grants) == 1, "the file is published")
        deadline = time.monotonic() + 5
        while not (book := await watcher.prices()).prices:
            assert time.monotonic() < deadline
    assert book.prices == (Price(workspace="acme", provider="kokoro", unit="characters", price="0.000002"),)


async def test_a_second_application_of_the_same_file_changes_nothing(control_plane: RunningControlPlane) -> None:
    first = await applied(control_plane)
    assert ("create", "account", "kokoro-local") in [(c["action"], c["kind"], c["name"]) for c in first["changes"]]
    second = await applied(control_plane)
    assert second["changes"] == []


async def test_a_minted_token_is_signed_by_a_key_of_the_published_issuer(control_plane: RunningControlPlane) -> None:
    await applied(control_plane)
    async with control_plane.client() as client:
        answer = await client.post("/tokens", json={"principal": "service_account:phone-agent", "team": "voice"})
    assert answer.status_code == 201, answer.text
    token = answer.json()["token"]
    async with watching(control_plane) as watcher:
        snapshot = await watcher.until(lambda snapshot: bool(snapshot.teams), "the team is published")
    issuer = next(issuer for issuer in snapshot.issuers if issuer.kind == "glottis")
    assert issuer == Issuer(
        id="glottis-acme",
        workspace="acme",
        issuer=f"{control_plane.url}/w/acme",
        audiences=("glottis",),
        kind="glottis",
        jwks_uri=f"{control_plane.url}/.well-known/jwks.json",
        algorithms=("ES256",),
    )
    async with httpx.AsyncClient(trust_env=False) as client:
        keys = jwt.PyJWKSet.from_dict((await client.get(str(issuer.jwks_uri))).json())
    head = jwt.get_unverified_header(token)
    claims = jwt.decode(token, keys[head["kid"]], algorithms=["ES256"], audience="glottis", issuer=issuer.issuer)
    assert head["typ"] == "glottis+jwt"
    assert claims["sub"] == answer.json()["principal"]
    assert claims["jti"] == answer.json()["id"]
    assert claims["workspace"] == "acme"
    assert claims["kind"] == "service_account"
    assert claims["team"] == snapshot.teams[0].id


async def test_a_revoked_token_reaches_watchers(
    control_plane: RunningControlPlane, record_property: Callable[[str, object], None]
) -> None:
    async with control_plane.client() as client, watching(control_plane) as watcher:
        token = (await client.post("/tokens", json={"principal": "user:ada"})).json()
        await watcher.until(lambda snapshot: bool(snapshot.principals), "the workspace is published")
        started = time.monotonic()
        answer = await client.delete(f"/tokens/{token['id']}")
        await watcher.until_revoked(f"acme.token.{token['id']}")
        record_property("seconds_to_the_watcher", round(time.monotonic() - started, 3))
    assert answer.status_code == 204


async def test_a_withdrawn_grant_reaches_watchers(
    control_plane: RunningControlPlane, record_property: Callable[[str, object], None]
) -> None:
    await applied(control_plane)
    async with control_plane.client() as client, watching(control_plane) as watcher:
        await watcher.until(lambda snapshot: len(snapshot.grants) == 1, "the grant is published")
        listed = (await client.get("/accounts/kokoro-local/collaborators")).json()["items"]
        started = time.monotonic()
        answer = await client.delete(f"/accounts/kokoro-local/collaborators/{listed[0]['id']}")
        await watcher.until(lambda snapshot: not snapshot.grants, "the grant is gone")
        record_property("seconds_to_the_watcher", round(time.monotonic() - started, 3))
    assert answer.status_code == 204


async def test_the_owner_secret_works_once(control_plane: RunningControlPlane) -> None:
    async with control_plane.client("") as client:
        answer = await client.post("/bootstrap", json={"secret": OWNER_SECRET, "workspace": "acme"})
    assert answer.status_code == 401
    assert answer.json()["reason"] == "owner_secret_refused"


async def test_a_wrong_owner_secret_makes_nothing(control_plane: RunningControlPlane) -> None:
    async with control_plane.client("") as client:
        answer = await client.post("/bootstrap", json={"secret": "another-secret-entirely", "workspace": "evil"})
    assert answer.status_code == 401
    assert answer.json()["reason"] == "owner_secret_refused"


async def test_an_export_applies_to_itself_without_a_change(control_plane: RunningControlPlane) -> None:
    await applied(control_plane)
    async with control_plane.client() as client:
        exported = (await client.get("/export")).text
        file = parse(exported, ("http://127.0.0.1:8880",))
        answer = await client.post("/apply", json={"document": to_document(file), "prune": True})
    assert "kk_secret_1" not in exported
    assert yaml.safe_load(exported)["workspace"]["id"] == "acme"
    assert answer.json()["changes"] == [], answer.text
