"""What is not forwarded: each refusal readable by the caller's SDK, and nothing of it at the provider."""

import asyncio
import json
from dataclasses import replace

import pytest

from contracts.revocations import Revocation
from contracts.snapshot import Issuer
from gateway.edge.context import Limits
from tests.doubles.cartesia import CartesiaDouble
from tests.kit.edge import JSON_BODY, Client, Edge, alice, edge, request, speak, workspace_at
from tests.kit.identities import IDP, idp_token, jwks, own_token, signing_key
from tests.kit.waiting import until


async def test_a_refusal_has_the_shape_that_the_callers_version_parses(client: Client, double: CartesiaDouble) -> None:
    body = JSON_BODY.replace(b"sonic-3", b"sonic-9")
    await client.send(speak("Cartesia-Version: 2026-08-14", body=body))
    new = await client.answer()
    await client.send(speak("Cartesia-Version: 2025-04-16", body=body))
    old = await client.answer()

    assert (new.status, old.status) == (403, 403)
    assert json.loads(new.body)["error_code"] == "model_not_granted"
    assert old.one(b"Content-Type") == b"text/plain; charset=utf-8"
    assert old.body.startswith(b"Forbidden: The model does not exist or is not granted to you: sonic-9.")
    assert [answer.one(b"x-should-retry") for answer in (new, old)] == [b"false", b"false"]
    assert new.one(b"X-Glottis-Request-Id") == b"00000000-0001-7000-8000-000000000000"
    assert double.connections == []


@pytest.mark.parametrize(
    ("token", "status", "reason"),
    [
        (None, 401, "token_missing"),
        ("not-a-jwt", 401, "token_malformed"),
        (idp_token(exp=1), 401, "token_expired"),
        (idp_token(signing_key(seed=7)), 401, "signature_invalid"),
        (idp_token(iss="https://other.test"), 401, "issuer_unknown"),
        (idp_token(sub="mallory"), 403, "principal_unknown"),
    ],
)
async def test_a_caller_that_cannot_be_told_is_refused(
    client: Client, gateway: Edge, double: CartesiaDouble, token: str | None, status: int, reason: str
) -> None:
    await client.send(request("GET", "/cartesia/voices", token=token))

    answer = await client.answer()

    assert (answer.status, json.loads(answer.body)["error_code"]) == (status, reason)
    assert (answer.one(b"WWW-Authenticate") is not None) is (status == 401)
    assert double.connections == []
    (settled,) = await gateway.settled()
    assert (settled.outcome, settled.reason, settled.status) == ("refused", reason, status)


async def test_a_refused_request_leaves_its_connection_usable(client: Client) -> None:
    await client.send(request("GET", "/cartesia/voices", token=None) + request("GET", "/cartesia/voices"))

    assert (await client.answer()).status == 401
    assert (await client.answer()).status == 200


async def test_an_upload_without_a_token_ends_in_a_readable_401(client: Client, double: CartesiaDouble) -> None:
    head = request("POST", "/cartesia/stt", "Content-Type: multipart/form-data; boundary=b", token=None)
    await client.send(head[:-2] + b"Content-Length: 209715200\r\n\r\n")
    answer = asyncio.ensure_future(client.answer(seconds=30))
    for _ in range(200):
        await client.send(bytes(2**20))

    assert (await answer).status == 401
    assert (await answer).one(b"Connection") == b"close"
    assert double.connections == []


async def test_expect_continue_without_a_token_is_answered_401_and_no_body_is_asked_for(client: Client) -> None:
    await client.send(speak("Expect: 100-continue", body=b"").replace(alice().encode(), b"no"))

    answer = await client.answer()

    assert (answer.interim, answer.status) == ([], 401)


async def test_expect_continue_on_a_judged_endpoint_is_answered_by_the_gateway_once_the_caller_is_known(
    client: Client, double: CartesiaDouble
) -> None:
    await client.send(speak("Expect: 100-continue", f"Content-Length: {len(JSON_BODY)}", body=b""))

    assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert double.requests == []
    await client.send(JSON_BODY)
    answer = await client.answer()

    assert (answer.interim, answer.status) == ([], 200)
    assert double.requests[0].all("Expect") == []


async def test_expect_continue_elsewhere_is_answered_by_the_provider(client: Client, double: CartesiaDouble) -> None:
    await client.send(request("GET", "/cartesia/voices", "Expect: 100-continue", "Content-Length: 2"))

    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 Continue\r\n")
    assert double.requests[0].all("Expect") == ["100-continue"]
    await client.send(b"{}")
    assert (await client.answer()).status == 200
    assert double.requests[0].body == b"{}"


async def test_a_path_under_no_mount_is_the_apps(client: Client) -> None:
    await client.send(request("GET", "/voices"))

    assert (await client.answer()).status == 404


@pytest.mark.parametrize(
    "target",
    [
        "/cartesia/../livez",
        "/cartesia/%2e%2e/voices",
        "/cartesia/voices/%2E%2E/tts/bytes",
        "/cartesia/voices/..%2f",
        "/cartesia/voices;x=1",
        "/cartesia/voices//v1",
        "/cartesia/%c0%ae%c0%ae/voices",
        "/cartesia/voices%00",
        "/cartesia/voices\\v1",
    ],
)
async def test_a_path_that_can_be_read_in_two_ways_is_refused(client: Client, double: CartesiaDouble, target: str) -> None:
    await client.send(request("GET", target))

    answer = await client.answer()

    assert (answer.status, json.loads(answer.body)["error_code"]) == (400, "path_refused")
    assert double.connections == []


async def test_a_preflight_is_answered_without_a_token(client: Client, double: CartesiaDouble) -> None:
    await client.send(
        request(
            "OPTIONS",
            "/cartesia/tts/bytes",
            "Origin: https://page.test",
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: authorization,cartesia-version",
            token=None,
        )
    )

    answer = await client.answer()

    assert (answer.status, answer.body) == (204, b"")
    assert answer.one(b"Access-Control-Allow-Origin") == b"https://page.test"
    assert answer.one(b"Access-Control-Allow-Methods") == b"POST"
    assert answer.one(b"Access-Control-Allow-Headers") == b"authorization,cartesia-version"
    assert double.connections == []


async def test_a_page_can_read_a_refusal(client: Client) -> None:
    await client.send(request("GET", "/cartesia/voices", "Origin: https://page.test", token=None))

    answer = await client.answer()

    assert (answer.status, answer.one(b"Access-Control-Allow-Origin")) == (401, b"https://page.test")


async def test_a_refusal_of_head_has_no_body(client: Client) -> None:
    await client.send(request("HEAD", "/cartesia/voices", token=None) + request("GET", "/livez"))

    refused = await client.answer("HEAD")

    assert refused.status == 401
    assert (await client.answer()).body == b'{"live":true}'


async def test_an_account_without_a_credential_is_503_and_nothing_is_sent(double: CartesiaDouble) -> None:
    """Public report 41: never an empty or `None` credential."""
    async with edge(double.origin, credentials={}) as gateway:
        client = await gateway.client()
        await client.send(speak())

        answer = await client.answer()

        assert (answer.status, json.loads(answer.body)["error_code"]) == (503, "credential_unavailable")
        assert double.connections == []


IDP_THAT_IS_FETCHED = Issuer(id="i-idp", workspace="w1", issuer=IDP, audiences=("glottis",), jwks_uri="https://idp.test/jwks")


async def test_a_token_signed_with_a_key_that_is_not_known_yet_waits_for_one_refresh(double: CartesiaDouble) -> None:
    async with edge(double.origin, snapshot=workspace_at(double.origin, issuers=(IDP_THAT_IS_FETCHED,))) as gateway:
        assert gateway.key_sets is not None
        gateway.key_sets.documents["i-idp"] = jwks(signing_key())
        client = await gateway.client()
        await client.send(speak())

        assert (await client.answer()).status == 200
        assert gateway.key_sets.refreshed == ["i-idp"]
        assert double.requests[0].body == JSON_BODY


async def test_a_token_whose_key_stays_unknown_is_refused_after_one_refresh(double: CartesiaDouble) -> None:
    async with edge(double.origin, snapshot=workspace_at(double.origin, issuers=(IDP_THAT_IS_FETCHED,))) as gateway:
        assert gateway.key_sets is not None
        gateway.key_sets.documents["i-idp"] = jwks(signing_key(seed=9, kid="other"))
        client = await gateway.client()
        await client.send(speak("Cartesia-Version: 2026-08-14"))

        answer = await client.answer()

        assert (answer.status, json.loads(answer.body)["error_code"]) == (401, "key_unknown")
        assert gateway.key_sets.refreshed == ["i-idp"]


async def test_a_token_of_an_issuer_whose_keys_cannot_be_had_is_told_to_try_again(double: CartesiaDouble) -> None:
    async with edge(double.origin, snapshot=workspace_at(double.origin, issuers=(IDP_THAT_IS_FETCHED,))) as gateway:
        client = await gateway.client()
        await client.send(speak("Cartesia-Version: 2026-08-14"))

        answer = await client.answer()

        assert (answer.status, json.loads(answer.body)["error_code"]) == (503, "keys_unavailable")


@pytest.mark.parametrize(("reason", "status"), [("not_ready", 503), ("config_stale", 503)])
async def test_without_a_fresh_configuration_nothing_is_taken(gateway: Edge, client: Client, reason: str, status: int) -> None:
    gateway.closed_because = reason
    await client.send(speak())

    answer = await client.answer()

    assert (answer.status, json.loads(answer.body)["error_code"]) == (status, reason)


@pytest.mark.parametrize("framing", ["Content-Length: 2000", "Transfer-Encoding: chunked"])
async def test_a_judged_body_over_the_limit_is_413(double: CartesiaDouble, framing: str) -> None:
    async with edge(double.origin, limits=Limits(judged_body_bytes=1000)) as gateway:
        client = await gateway.client()
        await client.send(speak(framing, body=b""))
        if "chunked" in framing:
            await client.send(b"7d0\r\n" + bytes(2000) + b"\r\n0\r\n\r\n")

        answer = await client.answer()

        assert (answer.status, json.loads(answer.body)["error_code"]) == (413, "body_too_large")
        assert double.connections == []


@pytest.mark.parametrize("framing", ["Content-Length: 2000", "Transfer-Encoding: chunked"])
async def test_a_body_over_the_limit_is_413_on_any_endpoint(double: CartesiaDouble, framing: str) -> None:
    async with edge(double.origin, limits=Limits(body_bytes=1000)) as gateway:
        client = await gateway.client()
        await client.send(request("GET", "/cartesia/voices", framing))
        if "chunked" in framing:
            await client.send(b"7d0\r\n" + bytes(2000) + b"\r\n0\r\n\r\n")

        assert (await client.answer()).status == 413


async def test_an_encoded_judged_body_is_415(client: Client, double: CartesiaDouble) -> None:
    await client.send(speak("Content-Encoding: gzip"))

    assert (await client.answer()).status == 415
    assert double.connections == []


async def test_access_tokens_are_never_asked_of_the_provider(client: Client, double: CartesiaDouble) -> None:
    await client.send(request("POST", "/cartesia/access-token", "Content-Type: application/json", body=b'{"expires_in":60}'))

    answer = await client.answer()

    assert (answer.status, json.loads(answer.body)["error_code"]) == (503, "credential_unavailable")
    assert double.connections == []


async def test_access_tokens_are_minted_by_the_gateway(gateway: Edge, client: Client, double: CartesiaDouble) -> None:
    asked: list[bytes] = []

    def mint(route: object, body: bytes, now: float) -> bytes:
        asked.append(body)
        return b'{"token":"minted"}'

    gateway.context.mint_access_token = mint
    await client.send(request("POST", "/cartesia/access-token", "Content-Type: application/json", body=b'{"expires_in":60}'))

    answer = await client.answer()

    assert (answer.status, answer.body, answer.one(b"Cache-Control")) == (200, b'{"token":"minted"}', b"no-store")
    assert asked == [b'{"expires_in":60}']
    assert double.connections == []


async def test_a_root_mount_serves_the_clients_that_drop_the_prefix(double: CartesiaDouble) -> None:
    async with edge(double.origin, snapshot=workspace_at(double.origin)) as gateway:
        gateway.world = replace(gateway.world, root_mounts={b"cartesia.gw.test": "cartesia"})
        client = await gateway.client()
        await client.send(request("GET", "/voices", host="Cartesia.GW.test:8443"))

        assert (await client.answer()).status == 200
        assert double.requests[0].target == "/voices"


async def test_a_revocation_during_an_upload_stops_it(gateway: Edge, client: Client, double: CartesiaDouble) -> None:
    await client.send(request("GET", "/cartesia/voices", "Content-Length: 1000") + bytes(10))
    await until(lambda: len(double.requests) == 1)
    gateway.world.revocations.add(Revocation(workspace="w1", kind="token", target="t1", at_ms=0))
    for exchange in gateway.context.open:
        exchange.world_changed(gateway.now)

    answer = await client.answer()

    assert (answer.status, json.loads(answer.body)["error_code"]) == (401, "token_revoked")
    await until(lambda: double.connections[0].gone.is_set())


async def test_text_that_the_provider_has_is_counted_though_a_revocation_comes_before_its_answer(
    gateway: Edge, client: Client, double: CartesiaDouble
) -> None:
    await client.send(speak("X-Double: silent"))
    await until(lambda: len(double.requests) == 1)
    (exchange,) = gateway.context.open
    exchange.end("token_revoked")

    assert (await client.answer()).status == 401
    (settled,) = await gateway.settled()
    assert (settled.outcome, settled.reason) == ("ended", "token_revoked")


async def test_a_revocation_lets_audio_of_sent_text_drain_for_a_while_and_then_cuts_it(double: CartesiaDouble) -> None:
    async with edge(double.origin, limits=Limits(revocation_drain_seconds=0.1)) as gateway:
        client = await gateway.client()
        await client.send(speak("X-Double: first-then-wait", target="/cartesia/tts/sse"))
        await client.until(b"event: chunk")
        gateway.world.revocations.add(Revocation(workspace="w1", kind="token", target="t1", at_ms=0))
        for exchange in gateway.context.open:
            exchange.world_changed(gateway.now)

        rest = await client.rest()

        assert not rest.endswith(b"0\r\n\r\n")
        (settled,) = await gateway.settled()
        assert (settled.outcome, settled.reason) == ("ended", "token_revoked")
        double.go.set()
        await until(lambda: double.connections[0].gone.is_set())


async def test_a_single_use_token_is_refused_where_its_open_sessions_cannot_be_counted(
    client: Client, gateway: Edge, double: CartesiaDouble
) -> None:
    token = own_token(kind="browser", is_single_use=True)
    body = JSON_BODY.replace(b"sonic-3", b"sonic-turbo")

    await client.send(request("POST", "/cartesia/tts/bytes", "Content-Type: application/json", body=body, token=token))
    refused = await client.answer()
    await client.send(request("GET", "/cartesia/voices", token=token))
    read = await client.answer()

    assert (refused.status, json.loads(refused.body)["error_code"]) == (503, "single_use_unavailable")
    assert read.status == 200
    assert [one.target for one in double.requests] == ["/voices"]
    (settled, _) = await gateway.settled(2)
    assert (settled.outcome, settled.reason) == ("refused", "single_use_unavailable")
