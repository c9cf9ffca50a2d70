"""Secrets at rest: what opens them, what does not, and that keys follow one another."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from contracts import sealing
from contracts.secret import Secret
from control_plane.vault import CannotDecrypt, KeyFileError, Vault, read_keys

OLD, NEW = Secret(b"o" * 32), Secret(b"n" * 32)
FLEET = X25519PrivateKey.from_private_bytes(b"f" * 32)
PLACE = ("credentials", "acme", "a1", "active", "1")


def vault(*keys: Secret) -> Vault:
    return Vault(keys, FLEET.public_key().public_bytes_raw(), lambda count: b"r" * count)


def test_a_secret_opens_at_its_own_place_alone() -> None:
    closed = vault(OLD).encrypted(Secret("sk_1"), *PLACE)
    assert b"sk_1" not in closed
    assert vault(OLD).decrypted(closed, *PLACE) == Secret("sk_1")
    with pytest.raises(CannotDecrypt, match="damaged or was moved"):
        vault(OLD).decrypted(closed, "credentials", "acme", "a2", "active", "1")


def test_places_that_read_alike_when_joined_are_different() -> None:
    closed = vault(OLD).encrypted(Secret("x"), "ab", "c")
    with pytest.raises(CannotDecrypt):
        vault(OLD).decrypted(closed, "a", "bc")


def test_a_new_key_closes_and_the_old_one_still_opens() -> None:
    closed = vault(OLD).encrypted(Secret("sk_1"), *PLACE)
    both = vault(NEW, OLD)
    assert both.decrypted(closed, *PLACE) == Secret("sk_1")
    assert not both.is_current(closed)
    assert both.is_current(both.encrypted(Secret("sk_1"), *PLACE))


def test_a_missing_key_is_named_by_its_id() -> None:
    closed = vault(OLD).encrypted(Secret("sk_1"), *PLACE)
    with pytest.raises(CannotDecrypt, match=r"needs key-encryption key [0-9a-f]{16}, have [0-9a-f]{16}"):
        vault(NEW).decrypted(closed, *PLACE)


@pytest.mark.parametrize("damage", [b"", b"\x02", b"\x01short"])
def test_bytes_that_are_no_stored_secret_are_refused(damage: bytes) -> None:
    with pytest.raises(CannotDecrypt):
        vault(OLD).decrypted(damage, *PLACE)


def test_a_sealed_credential_opens_for_its_account_version_and_origin_alone() -> None:
    box = vault(OLD).sealed_credential(Secret("sk_1"), "acme", "a1", 3, "https://api.cartesia.ai")
    keys = {sealing.fleet_key_id(FLEET.public_key().public_bytes_raw()): Secret(FLEET.private_bytes_raw())}
    purpose = sealing.credential_purpose("acme", "a1", 3, "https://api.cartesia.ai")
    assert sealing.opened(box, keys, purpose) == Secret("sk_1")
    with pytest.raises(sealing.CannotOpen):
        sealing.opened(box, keys, sealing.credential_purpose("acme", "a1", 3, "https://evil.example"))


def test_a_key_file_gives_its_keys_in_order() -> None:
    lines = [base64.b64encode(key.reveal()).decode() for key in (NEW, OLD)]
    assert read_keys(f"# current first\n\n{lines[0]}\n{lines[1]}\n") == (NEW, OLD)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it holds no key"),
        ("# nothing\n", "it holds no key"),
        ("not base64!\n", "line 1 is not base64"),
        ("\nYWJj\n", "line 2 holds 3 bytes; a key has 32"),
    ],
)
def test_a_wrong_key_file_is_told_by_line_and_never_quoted(text: str, problem: str) -> None:
    with pytest.raises(KeyFileError) as error:
        read_keys(text)
    assert str(error.value) == problem
