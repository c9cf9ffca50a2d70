"""Key sets: what is read of them, and what is left alone."""

import json
from typing import Any

import pytest

from contracts.snapshot import Issuer
from policy.keyring import CACHE_LIMIT, KeyRing, KeySetRefused, Verified
from policy.route import Caller
from tests.kit.identities import b64, jwks, signing_key

ISSUER = Issuer(id="i1", workspace="w1", issuer="https://idp.test", audiences=("g",), jwks_uri="https://idp.test/jwks")
CALLER = Caller("w1", "u-alice", "user", "Alice", (), ISSUER, "t1", None, 0.0, 1.0)


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"[]", b"null", b'{"keys":{}}', b'{"keys":null}', b"{}", json.dumps({"keys": [{}] * 257}).encode()],
)
def test_what_is_no_key_set_leaves_the_keys_as_they_were(document: bytes) -> None:
    ring = KeyRing()
    ring.set_keys("i1", jwks(signing_key()))

    with pytest.raises(KeySetRefused):
        ring.set_keys("i1", document)

    assert len(ring.candidates(ISSUER, "k1")) == 1


EC = signing_key().jwk


@pytest.mark.parametrize(
    "jwk",
    [
        {},
        7,
        {"kty": "oct", "k": b64(b"secret")},
        {"kty": ["EC"]},
        EC | {"use": "enc"},
        EC | {"key_ops": ["sign"]},
        EC | {"key_ops": "verify"},
        EC | {"crv": "secp256k1"},
        EC | {"crv": "P-384"},
        EC | {"x": EC["y"]},
        EC | {"x": 7},
        EC | {"x": "!"},
        EC | {"kid": 7},
        EC | {"alg": "HS256"},
        EC | {"alg": "RS256"},
        {"kty": "RSA", "n": b64(b"\xff" * 128), "e": "AQAB"},
        {"kty": "RSA", "n": b64(b"\xff" * 256), "e": "AA"},
        {"kty": "OKP", "crv": "X25519", "x": b64(b"x" * 32)},
        {"kty": "OKP", "crv": "Ed25519", "x": b64(b"x" * 31)},
    ],
)
def test_a_key_that_cannot_verify_is_passed_over(jwk: Any) -> None:
    ring = KeyRing()

    assert ring.set_keys("i1", json.dumps({"keys": [jwk, EC | {"kid": "good", "use": "sig"}]}).encode()) == 1
    assert [key.kid for key in ring.candidates(ISSUER, "good")] == ["good"]


def test_a_key_may_have_a_fingerprint_and_more_members_than_we_read() -> None:
    ring = KeyRing()

    assert ring.set_keys("i1", json.dumps({"keys": [EC | {"x5t": "x", "d": "AQ", "key_ops": ["verify"]}]}).encode()) == 1


def test_several_keys_may_share_a_kid() -> None:
    ring = KeyRing()
    ring.set_keys("i1", jwks(signing_key("ES256", "k1"), signing_key("ES256", "k1", seed=1)))

    assert len(ring.candidates(ISSUER, "k1")) == 2


def test_a_token_without_kid_is_tried_with_a_bounded_number_of_keys() -> None:
    ring = KeyRing()
    ring.set_keys("i1", jwks(*(signing_key("EdDSA", f"k{n}") for n in range(20))))

    assert len(ring.candidates(ISSUER, None)) == 8


def test_forgotten_keys_are_gone() -> None:
    ring = KeyRing()
    ring.set_keys("i1", jwks(signing_key()))
    [key] = ring.candidates(ISSUER, "k1")

    ring.forget("i1")

    assert not key.is_current
    assert not ring.has_keys("i1")
    assert ring.candidates(ISSUER, "k1") == ()


def test_the_cache_is_bounded_and_the_oldest_makes_room() -> None:
    ring = KeyRing()
    ring.set_keys("i1", jwks(signing_key()))
    [key] = ring.candidates(ISSUER, "k1")
    for n in range(CACHE_LIMIT + 1):
        ring.remember(n.to_bytes(32, "big"), Verified(key, ISSUER, CALLER, 0.0, 1.0))

    assert len(ring) == CACHE_LIMIT
    assert ring.verified((0).to_bytes(32, "big")) is None
    assert ring.verified((1).to_bytes(32, "big")) is not None


def test_a_static_set_that_cannot_be_read_leaves_no_key_of_the_one_before() -> None:
    ring = KeyRing()
    before = Issuer(id="i1", workspace="w1", issuer="x", audiences=(), jwks=jwks(signing_key()))
    after = Issuer(id="i1", workspace="w1", issuer="x", audiences=(), jwks=b"{")

    assert len(ring.candidates(before, "k1")) == 1
    assert ring.candidates(after, "k1") == ()
