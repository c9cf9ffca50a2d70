"""Answers to `POST /access-token`: bounded by their parent in everything."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from contracts.revocations import Revocation
from contracts.secret import Secret
from contracts.snapshot import Issuer
from policy.decide import Admit, NeedFacts, decide
from policy.index import index_of
from policy.mint import access_token
from policy.refusal import Refusal
from policy.world import World
from tests.kit.heads import head_of
from tests.kit.identities import IDP, NOW, SigningKey, idp_token, jwks, own_token, signing_key, voice_workspace

KEYS = [signing_key("EdDSA", "pods"), signing_key("ES256", "pods-es"), signing_key("EdDSA", None)]


def der(key: SigningKey) -> Secret:
    return Secret(key.private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))


def world_of(key: SigningKey = KEYS[0], **changes: Any) -> World:
    issuer = Issuer(
        id="i-at", workspace="w1", issuer="https://at.test", audiences=("glottis",), kind="access_token", jwks=jwks(key)
    )
    return World(index_of(voice_workspace(plus_issuers=(issuer,), **changes)))


def minted(
    body: bytes = b"", token: str | None = None, path: str = "/cartesia/access-token", key: SigningKey = KEYS[0], **changes: Any
) -> tuple[World, bytes | Refusal]:
    world = world_of(key, **changes)
    decision = decide(head_of(f"POST {path}", token=token or idp_token()), None, world, NOW)
    assert isinstance(decision, Admit), decision
    return world, access_token(decision.route, body, der(key), world.index, world.keys, "child1", NOW)


def shown(body: bytes = b"", token: str | None = None, **changes: Any) -> tuple[World, str]:
    world, answer = minted(body, token, **changes)
    assert isinstance(answer, bytes), answer
    return world, json.loads(answer)["token"]


def listed(token: str, world: World, now: float = NOW, request_line: str = "GET /cartesia/voices") -> str:
    decision = decide(head_of(request_line, "Content-Type: application/json", token=token), None, world, now)
    return decision.reason if isinstance(decision, Refusal) else type(decision).__name__


@pytest.mark.parametrize("key", KEYS)
def test_a_minted_token_opens_the_gateway_as_its_parents_principal(key: SigningKey) -> None:
    world, token = shown(b'{"grants":{"tts":true},"expires_in":60}', key=key)
    decision = decide(head_of("POST /cartesia/tts/bytes", token=token), None, world, NOW)

    assert isinstance(decision, NeedFacts)
    assert listed(token, world) == "operation_not_granted"
    assert listed(token, world, NOW + 89, "POST /cartesia/tts/bytes") == "NeedFacts"
    assert listed(token, world, NOW + 90, "POST /cartesia/tts/bytes") == "token_expired"


def test_a_minted_token_does_not_outlive_its_parent() -> None:
    world, token = shown(token=idp_token(exp=NOW + 100))

    assert listed(token, world, NOW + 130, "POST /cartesia/tts/bytes") == "token_expired"


def test_a_minted_token_cannot_mint() -> None:
    world, token = shown()

    assert listed(token, world, NOW, "POST /cartesia/access-token") == "cannot_mint"


@pytest.mark.parametrize("target", ["child1", "t1"])
def test_revoking_either_kills_it(target: str) -> None:
    world, token = shown()
    world.revocations.add(Revocation(workspace="w1", kind="token", target=target, at_ms=0))

    assert listed(token, world, NOW, "POST /cartesia/tts/bytes") == "token_revoked"


@pytest.mark.parametrize(
    ("body", "parent", "expected"),
    [
        (b"", None, ("tts", "stt", "agents")),
        (b"{}", ("tts", "voices.read"), ("tts",)),
        (b'{"grants":{"tts":true,"stt":false,"agent":true}}', None, ("tts", "agents")),
        (b'{"grants":{"stt":true,"account":true}}', None, ("stt",)),
    ],
)
def test_operations_are_what_was_asked_and_the_parent_may(
    body: bytes, parent: tuple[str, ...] | None, expected: tuple[str, ...]
) -> None:
    operations = list(parent) if parent is not None else None
    world, token = shown(body, own_token(operations=operations))
    decision = decide(head_of("GET /cartesia/tts/websocket", token=token, is_websocket=True), None, world, NOW)

    caller = decision.route.caller if isinstance(decision, Admit) else None
    assert caller is None or caller.operations == expected
    assert (caller is not None) == ("tts" in expected)


def test_the_parents_narrowing_stays_and_a_pin_narrows_further() -> None:
    parent = own_token(accounts=["a-us", "a-eu"], models=["sonic-turbo"], team="lab")
    world, token = shown(token=parent, path="/cartesia/@cartesia-us/access-token")
    decision = decide(head_of("GET /cartesia/tts/websocket", token=token, is_websocket=True), None, world, NOW)

    assert isinstance(decision, Admit)
    caller = decision.route.caller
    assert (caller.principal, caller.accounts, caller.models, caller.cost_team) == ("agent", ("a-us",), ("sonic-turbo",), "lab")
    assert caller.parent_token_id == "own1"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[]", "body_not_json"),
        (b"{", "body_not_json"),
        (b'{"expires_in":1,"expires_in":2}', "body_not_json"),
        (b'{"expires_in":0}', "judged_value_invalid"),
        (b'{"expires_in":3601}', "judged_value_invalid"),
        (b'{"expires_in":"60"}', "judged_value_invalid"),
        (b'{"expires_in":true}', "judged_value_invalid"),
        (b'{"grants":["tts"]}', "judged_value_invalid"),
        (b'{"grants":{"tts":"yes"}}', "judged_value_invalid"),
        (b'{"grants":{"tts":false}}', "operation_not_granted"),
    ],
)
def test_a_request_that_is_not_as_it_must_be_is_refused(body: bytes, reason: str) -> None:
    _, answer = minted(body)

    assert isinstance(answer, Refusal)
    assert answer.reason == reason


def test_a_key_that_no_issuer_lists_mints_nothing() -> None:
    world = world_of()
    decision = decide(head_of("POST /cartesia/access-token", token=idp_token()), None, world, NOW)
    assert isinstance(decision, Admit)

    for key in (signing_key("EdDSA", "foreign"), signing_key("RS256", "rsa")):
        answer = access_token(decision.route, b"", der(key), world.index, world.keys, "child1", NOW)
        assert answer == Refusal("minting_unavailable")


def test_a_principal_without_a_record_cannot_mint() -> None:
    admits = Issuer(
        id="i-idp",
        workspace="w1",
        issuer=IDP,
        audiences=("glottis",),
        jwks=jwks(signing_key()),
        admits_unregistered=True,
        groups_claim="groups",
        group_teams={"speech": "voice"},
    )
    world = World(index_of(voice_workspace(issuers=(admits,))))
    decision = decide(head_of("POST /cartesia/access-token", token=idp_token(sub="carol", groups=["speech"])), None, world, NOW)
    assert isinstance(decision, Admit)

    assert access_token(decision.route, b"", der(KEYS[0]), world.index, world.keys, "c", NOW) == Refusal("principal_unknown")
