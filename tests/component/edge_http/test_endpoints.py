"""Every endpoint of every profile, asked by somebody who may not: the answer says why, and the provider hears nothing."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from contracts.revocations import Revocation
from contracts.snapshot import Account, Grant, Model, Principal
from gateway.edge.websocket_relay import take_over
from policy.providers.profile import Endpoint
from policy.providers.registry import PROFILES
from tests.doubles.cartesia import CartesiaDouble
from tests.kit.edge import JSON_BODY, Answer, Edge, edge, request, speak, workspace_at
from tests.kit.identities import idp_token
from tests.kit.sessions import handshake

ENDPOINTS = [(profile, endpoint) for profile in PROFILES.values() for endpoint in profile.endpoints]
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model_id"\r\n\r\nsonic-3\r\n'
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nink-whisper\r\n--b--\r\n'
)
OTHER_TEAM = Principal(
    id="u-carol", workspace="w1", kind="user", name="Carol", teams=("lab",), issuer_id="i-idp", subject="carol"
)

CALLERS: dict[str, tuple[str | None, int, set[str]]] = {
    "no token": (None, 401, {"token_missing"}),
    "expired": (idp_token(exp=1), 401, {"token_expired"}),
    "wrong audience": (idp_token(aud="dashboard"), 401, {"issuer_unknown"}),
    "revoked": (idp_token(jti="revoked"), 401, {"token_revoked"}),
    "other team": (idp_token(sub="carol"), 403, {"account_not_granted", "model_not_granted", "operation_not_granted"}),
}
"""who asks -> token, status, reasons"""


@pytest_asyncio.fixture
async def double() -> AsyncIterator[CartesiaDouble]:
    async with CartesiaDouble() as double:
        yield double


@pytest_asyncio.fixture
async def gateway(double: CartesiaDouble) -> AsyncIterator[Edge]:
    async with edge(double.origin, snapshot=workspace_at(double.origin, plus_principals=(OTHER_TEAM,))) as running:
        running.world.revocations.add(Revocation(workspace="w1", kind="token", target="revoked", at_ms=0))
        running.context.take_over = take_over
        yield running


def target_of(mount: bytes, endpoint: Endpoint) -> str:
    path = "/".join("x" if part.startswith("{") else part for part in endpoint.path.split("/"))
    query = "?model=ink-whisper&encoding=pcm_s16le&sample_rate=16000" if endpoint.model_in_query else ""
    return f"/{mount.decode()}{path}{query}"


async def asked(gateway: Edge, mount: bytes, endpoint: Endpoint, method: str, token: str | None) -> Answer:
    target = target_of(mount, endpoint)
    client = await gateway.client()
    if endpoint.is_websocket:
        await client.send(handshake(target, token=token or ""))
    elif endpoint.judged == "json_body":
        body = JSON_BODY.replace(b"sonic-3", b"kokoro-82m") if mount == b"kokoro" else JSON_BODY
        await client.send(request(method, target, "Content-Type: application/json", body=body, token=token))
    elif endpoint.judged == "form_field":
        await client.send(request(method, target, "Content-Type: multipart/form-data; boundary=b", body=FORM, token=token))
    else:
        await client.send(request(method, target, "Cartesia-Version: 2026-08-14", token=token))
    answer = await client.answer(method, 10)
    client.close()
    return answer


@pytest.mark.parametrize("who", CALLERS)
async def test_no_endpoint_lets_anything_reach_the_provider(gateway: Edge, double: CartesiaDouble, who: str) -> None:
    token, status, reasons = CALLERS[who]
    wrong: list[tuple[str, str, Any]] = []
    asks = 0

    for profile, endpoint in ENDPOINTS:
        for method in endpoint.methods or ("GET", "POST", "DELETE"):
            answer = await asked(gateway, profile.mount, endpoint, method, token)
            asks += 1
            reason = json.loads(answer.body)["error_code"] if answer.body else ""
            if answer.status != status or reason not in reasons:
                wrong.append((endpoint.id, method, (answer.status, reason)))

    assert wrong == []
    assert asks > 90
    assert double.connections == []
    settled = await gateway.settled(asks)
    assert {one.outcome for one in settled} == {"refused"}
    assert {one.reason for one in settled} <= reasons
    assert all(one.status == status for one in settled)


async def test_the_same_endpoints_serve_who_may_use_them(gateway: Edge, double: CartesiaDouble) -> None:
    """The table above refuses for its callers' sake, and not because its requests are broken."""
    reached = []
    for profile, endpoint in ENDPOINTS:
        if endpoint.operation in ("tts", "stt", "voices.read") and not endpoint.is_websocket and not endpoint.is_answered_here:
            answer = await asked(gateway, profile.mount, endpoint, endpoint.methods[0], idp_token())
            reached.append((endpoint.id, answer.status))

    assert {status for _, status in reached} == {200}
    assert len(double.requests) == len(reached)


async def test_another_workspaces_account_and_model_look_like_ones_that_nobody_has(double: CartesiaDouble) -> None:
    theirs = Account(id="a-w2", workspace="w2", name="their-account", provider="cartesia", origin=double.origin)
    model = Model(id="m-w2", workspace="w2", account="a-w2", name="their-model", type="text-to-speech")
    grant = Grant(id="g-w2", workspace="w2", account="a-w2", subject="team:voice", role="manager")
    snapshot = workspace_at(double.origin, plus_models=(model,), plus_grants=(grant,))
    snapshot = msgspec.structs.replace(snapshot, accounts=(*snapshot.accounts, theirs))
    told = []

    async with edge(double.origin, snapshot=snapshot) as gateway:
        gateway.context.take_over = take_over
        for profile, endpoint in ENDPOINTS:
            for method in endpoint.methods or ("GET",):
                pinned = [
                    await asked(gateway, profile.mount + b"/@" + name, endpoint, method, idp_token())
                    for name in (b"their-account", b"any-account")
                ]
                seen = [(one.status, re.sub(rb"their|any|[0-9a-f-]{36}", b"", one.body)) for one in pinned]
                if seen[0] != seen[1] or seen[0][0] != 403:
                    told.append((endpoint.id, seen))
        for name in ("their-model", "any-model"):
            client = await gateway.client()
            await client.send(speak(body=JSON_BODY.replace(b"sonic-3", name.encode())))
            answer = await client.answer()
            assert json.loads(answer.body)["message"] == (
                f"The model does not exist or is not granted to you: {name}. "
                "Ask an owner of the account or an administrator of the workspace."
            )
            client.close()

    assert told == []
    assert double.connections == []
