"""Two workspaces, every route of the API: another's ids look like ids that nobody has, and nothing of the other's changes."""

from __future__ import annotations

import re
import uuid
from typing import Any

import httpx

from tests.kit.control_plane import RunningControlPlane, second_workspace

BODIES: dict[str, Any] = {
    "PATCH": {},
    "PUT /accounts/{account}/credential": {"credential": "sk_0123456789abcdef"},
    "POST /accounts/{account}/models": {"name": "sonic-3", "type": "text-to-speech"},
    "POST /accounts/{account}/collaborators": {"subject": "user:ada"},
    "POST /tokens/{token}/rotate": {},
}
"""`METHOD path`, or a method for all its paths -> a body that is good where the thing is there"""


CARTESIA = {"provider": "cartesia", "origin": "https://api.cartesia.ai"}


async def seeded(running: RunningControlPlane) -> dict[str, str]:
    """Make one of everything; return the ids by the names of the routes' parameters."""
    ids: dict[str, str] = {}
    async with running.client() as client:
        for name, path, body in (
            ("team", "/teams", {"name": "voice"}),
            ("issuer", "/issuers", {"name": "idp", "issuer": "https://idp.example.com", "audiences": ["glottis"]}),
            ("user", "/users", {"name": "grace"}),
            ("service_account", "/service-accounts", {"name": "agent"}),
            (
                "account",
                "/accounts",
                {"name": "eu", "provider": "cartesia", "origin": "https://api.cartesia.ai", "credential": "x" * 20},
            ),
            ("model", "/accounts/eu/models", {"name": "sonic-3", "type": "text-to-speech"}),
            ("collaborator", "/accounts/eu/collaborators", {"subject": "user:grace"}),
            ("price", "/prices", {"provider": "cartesia", "unit": "characters", "price": "0.00003"}),
            ("token", "/tokens", {"principal": "user:grace"}),
            ("target", "/export-targets", {"name": "otlp", "endpoint": "https://otlp.example.com/v1/traces"}),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 201, (path, answer.text)
            ids[name] = answer.json()["id"]
    return ids


async def answer_to(client: httpx.AsyncClient, method: str, path: str, ids: dict[str, str]) -> tuple[int, str]:
    """Return status and body, in which what was asked for and the request's id have no value."""
    template = f"{method} {path}"
    for name, value in ids.items():
        path = path.replace("{" + name + "}", value)
    body = BODIES.get(template, BODIES.get(method))
    answer = await client.request(method, path, json=body, headers={"If-Match": "*"})
    text = answer.text
    for name, value in ids.items():
        text = text.replace(value, f"<{name}>")
    return answer.status_code, re.sub(r'"request_id":"[^"]*"', '"request_id":""', text)


async def test_every_route_answers_alike_for_what_is_another_workspaces_and_for_what_is_nobodys(
    control_plane: RunningControlPlane,
) -> None:
    theirs = await seeded(control_plane)
    fixed = {"slot": "active", "exchange": str(uuid.uuid4()), "entry": "1", "job": str(uuid.uuid4())}
    nobodys = {name: str(uuid.uuid4()) for name in theirs}
    async with control_plane.client() as owner:
        described = (await owner.get("/openapi.json")).json()
        before = (await owner.get("/export")).text
        tokens = (await owner.get("/tokens")).json()
    other = await second_workspace(control_plane, "globex")
    compared, told = 0, []

    async with other.client() as stranger:
        for full, methods in described["paths"].items():
            path = full.removeprefix("/api/v1")
            names = set(re.findall(r"{(\w+)}", path))
            if not names or not names <= theirs.keys() | fixed.keys():
                assert names <= theirs.keys() | fixed.keys(), f"{path}: say here what its parameters are"
                continue
            for method in methods.keys() & {"get", "post", "put", "patch", "delete"}:
                real = await answer_to(stranger, method.upper(), path, theirs | fixed)
                invented = await answer_to(stranger, method.upper(), path, nobodys | fixed)
                compared += 1
                if real != invented or (names & theirs.keys() and real[0] != 404):
                    told.append((method, path, real, invented))

    assert told == []
    assert compared > 35
    async with control_plane.client() as owner:
        assert (await owner.get("/export")).text == before
        assert (await owner.get("/tokens")).json() == tokens
