"""Every resource through its whole life, every list by each of its filters, and defaults as gateways read them."""

from __future__ import annotations

from typing import Any

import httpx

from tests.kit.control_plane import RunningControlPlane, watching

Body = dict[str, Any]  # Any: JSON

LIVES: tuple[tuple[str, Body, Body], ...] = (
    ("/teams", {"name": "voice"}, {"name": "speech"}),
    ("/users", {"name": "grace", "email": "grace@example.com"}, {"disabled": True}),
    ("/service-accounts", {"name": "phone-agent"}, {"disabled": True}),
    (
        "/issuers",
        {"name": "idp", "issuer": "https://idp.example.com", "audiences": ["glottis"]},
        {"leeway_seconds": 5},
    ),
    ("/accounts", {"name": "cartesia-us", "provider": "cartesia", "origin": "https://api.cartesia.ai"}, {"priority": 7}),
    ("/accounts/cartesia-eu/models", {"name": "sonic-3", "type": "text-to-speech"}, {"priority": 3}),
    ("/accounts/cartesia-eu/collaborators", {"subject": "user:ada", "role": "user"}, {"role": "manager"}),
    ("/export-targets", {"name": "honeycomb", "endpoint": "https://api.honeycomb.io"}, {"timeout_seconds": 20}),
)
"""where it is made, how, and one change of it; prices are dated entries, so they are made and deleted, never changed"""


async def made(client: httpx.AsyncClient, path: str, body: Body) -> Body:
    answer = await client.post(path, json=body)
    assert answer.status_code == 201, (path, answer.text)
    document: Body = answer.json()
    return document


async def test_every_resource_is_made_read_listed_changed_and_deleted(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await made(client, "/accounts", {"name": "cartesia-eu", "provider": "cartesia", "origin": "https://api.cartesia.ai"})
        for path, body, change in LIVES:
            created = await client.post(path, json=body)
            one = created.json()
            assert created.status_code == 201, (path, created.text)
            where = created.headers["location"].removeprefix("/api/v1")
            assert where.endswith(f"/{one['id']}"), path
            read = await client.get(where)
            assert (read.json(), read.headers["etag"]) == (one, created.headers["etag"]), path
            assert one in (await client.get(path)).json()["items"], path
            changed = await client.patch(where, json=change, headers={"If-Match": read.headers["etag"]})
            assert changed.status_code == 200, (path, changed.text)
            assert {field: changed.json()[field] for field in change} == change, path
            assert changed.headers["etag"] == '"v2"', path
            stale = await client.delete(where, headers={"If-Match": read.headers["etag"]})
            assert (stale.status_code, stale.json()["reason"]) == (412, "changed_meanwhile"), path
            assert (await client.delete(where, headers={"If-Match": changed.headers["etag"]})).status_code == 204, path
            assert (await client.get(where)).status_code == 404, path


async def test_a_price_is_entered_with_its_date_read_and_deleted(control_plane: RunningControlPlane) -> None:
    entry = {
        "provider": "cartesia",
        "model": "sonic-3",
        "unit": "characters",
        "price": "0.00003",
        "effective": "2027-01-01T00:00:00Z",
    }
    async with control_plane.client() as client:
        price = await made(client, "/prices", entry)
        assert (price["price"], price["effective_ms"]) == ("0.00003", 1_798_761_600_000)
        twice = await client.post("/prices", json=entry)
        assert (twice.status_code, twice.json()["reason"]) == (409, "already_exists")
        assert (await client.delete(f"/prices/{price['id']}")).status_code == 204
        assert (await client.get(f"/prices/{price['id']}")).status_code == 404


async def test_every_list_is_narrowed_by_each_of_its_filters(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        for path, body in (
            ("/teams", {"name": "voice"}),
            ("/teams", {"name": "speech"}),
            ("/users", {"name": "grace", "email": "grace@example.com", "teams": ["voice"]}),
            ("/users", {"name": "lin", "email": "lin@example.com", "teams": ["speech"]}),
            ("/service-accounts", {"name": "phone-agent", "teams": ["voice"]}),
            ("/service-accounts", {"name": "kiosk", "teams": ["speech"]}),
            ("/accounts", {"name": "eu", "provider": "cartesia", "origin": "https://api.cartesia.ai"}),
            ("/accounts", {"name": "own", "provider": "kokoro", "origin": "https://kokoro.example.com"}),
            ("/accounts/eu/models", {"name": "sonic-3", "type": "text-to-speech"}),
            ("/accounts/eu/models", {"name": "ink-whisper", "type": "speech-to-text"}),
            ("/prices", {"provider": "cartesia", "model": "sonic-3", "unit": "characters", "price": "1"}),
            ("/prices", {"provider": "kokoro", "unit": "requests", "price": "2"}),
            ("/tokens", {"principal": "user:grace"}),
            ("/tokens", {"principal": "service_account:kiosk"}),
        ):
            await made(client, path, body)
        teams = [await made(client, "/accounts/eu/collaborators", {"subject": f"team:{name}"}) for name in ("voice", "speech")]
        revoked = await made(client, "/tokens", {"principal": "user:lin", "name": "old"})
        await client.delete(f"/tokens/{revoked['id']}")
        ada = (await client.get("/users/ada")).json()["id"]
        kiosk = (await client.get("/service-accounts/kiosk")).json()["id"]
        for path, query, field, expected in (
            ("/teams", {"name": "voice"}, "name", ["voice"]),
            ("/users", {"name": "grace"}, "name", ["grace"]),
            ("/users", {"email": "lin@example.com"}, "name", ["lin"]),
            ("/users", {"team": "voice"}, "name", ["grace"]),
            ("/service-accounts", {"name": "kiosk"}, "name", ["kiosk"]),
            ("/service-accounts", {"team": "voice"}, "name", ["phone-agent"]),
            ("/accounts", {"name": "eu"}, "name", ["eu"]),
            ("/accounts", {"provider": "kokoro"}, "name", ["own"]),
            ("/accounts/eu/models", {"name": "ink-whisper"}, "name", ["ink-whisper"]),
            ("/accounts/eu/collaborators", {"subject": teams[1]["subject"]}, "id", [teams[1]["id"]]),
            ("/prices", {"provider": "kokoro"}, "unit", ["requests"]),
            ("/prices", {"model": "sonic-3"}, "unit", ["characters"]),
            ("/prices", {"unit": "requests"}, "provider", ["kokoro"]),
            ("/tokens", {"principal": "service_account:kiosk"}, "principal", [kiosk]),
            ("/tokens", {"is_revoked": "true"}, "name", ["old"]),
            ("/tokens", {"audience": "glottis-api"}, "principal", [ada]),
            ("/audit", {"kind": "price"}, "kind", ["price", "price"]),
            ("/audit", {"target": revoked["id"]}, "action", ["revoke", "create"]),
            ("/audit", {"actor": "nobody"}, "action", []),
        ):
            answer = await client.get(path, params=query)
            assert answer.status_code == 200, (path, query, answer.text)
            assert [one[field] for one in answer.json()["items"]] == expected, (path, query)


async def test_defaults_of_workspace_and_team_reach_gateways(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client, watching(control_plane) as watcher:
        account = await made(client, "/accounts", {"name": "eu", "provider": "cartesia", "origin": "https://api.cartesia.ai"})
        await made(client, "/teams", {"name": "voice", "defaults": {"cartesia": "eu"}})
        change = await client.patch("/workspace", json={"defaults": {"cartesia": "eu"}}, headers={"If-Match": "*"})
        assert change.status_code == 200, change.text
        found = await watcher.until(
            lambda snapshot: bool(snapshot.workspaces and snapshot.workspaces[0].default_accounts), "the default is published"
        )
    assert found.workspaces[0].default_accounts == {"cartesia": account["id"]}
    assert found.teams[0].default_accounts == {"cartesia": account["id"]}
