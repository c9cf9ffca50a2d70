"""`GET /explain`: the data plane's decision over what is committed."""

from __future__ import annotations

from tests.kit.control_plane import RunningControlPlane


async def granted(running: RunningControlPlane) -> None:
    """Make grace of team voice, who may use account eu with sonic-3."""
    async with running.client() as client:
        for path, body in (
            ("/teams", {"name": "voice"}),
            ("/users", {"name": "grace", "teams": ["voice"]}),
            ("/accounts", {"name": "eu", "provider": "cartesia", "origin": "https://api.cartesia.ai"}),
            ("/accounts/eu/models", {"name": "sonic-3", "type": "text-to-speech"}),
            ("/accounts/eu/collaborators", {"subject": "team:voice"}),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 201, answer.text


async def test_a_granted_model_is_admitted_with_the_rules_that_took_part(control_plane: RunningControlPlane) -> None:
    await granted(control_plane)
    async with control_plane.client() as client:
        answer = (await client.get("/explain", params={"as": "user:grace", "model": "sonic-3"})).json()
    assert (answer["is_admitted"], answer["reason"], answer["account"], answer["model"]) == (True, "admitted", "eu", "sonic-3")
    assert [(one["rule"], one["effect"]) for one in answer["findings"]] == [
        ("principal", "allows"),
        ("grant", "allows"),
        ("account", "allows"),
        ("model", "allows"),
        ("choice", "allows"),
        ("operation", "allows"),
        ("voice", "allows"),
    ]


async def test_a_withdrawn_grant_is_refused_before_it_is_published(control_plane: RunningControlPlane) -> None:
    await granted(control_plane)
    async with control_plane.client() as client:
        grant = (await client.get("/accounts/eu/collaborators")).json()["items"][0]
        await client.delete(f"/accounts/eu/collaborators/{grant['id']}")
        answer = (await client.get("/explain", params={"as": "user:grace", "model": "sonic-3"})).json()
    assert (answer["is_admitted"], answer["reason"]) == (False, "account_not_granted")


async def test_what_cannot_be_asked_is_told(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        nobody = await client.get("/explain", params={"as": "user:nobody"})
        nothing = await client.get("/explain", params={"as": "user:ada", "op": "sing"})
    assert (nobody.status_code, nobody.json()["reason"]) == (404, "not_found")
    assert nothing.status_code == 422
    assert nothing.json()["detail"].startswith("Profile cartesia has no endpoint sing; it has ")
