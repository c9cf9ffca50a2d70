"""A sealed credential opens for its own account, version and origin, with the fleet's key, and for nothing else."""

import pytest

from contracts import sealing
from contracts.secret import Secret

FLEET = Secret(bytes(range(32)))
FLEET_PUBLIC = sealing.fleet_public_key(FLEET)
KEYS = {sealing.fleet_key_id(FLEET_PUBLIC): FLEET}
PURPOSE = sealing.credential_purpose("acme", "a-1", 3, "https://api.cartesia.ai")


def test_a_sealed_credential_opens_with_the_fleet_key() -> None:
    box = sealing.sealed(Secret("sk_live"), 3, FLEET_PUBLIC, PURPOSE)
    assert sealing.opened(box, KEYS, PURPOSE).reveal() == b"sk_live"


@pytest.mark.parametrize(
    "other",
    [
        sealing.credential_purpose("acme", "a-2", 3, "https://api.cartesia.ai"),
        sealing.credential_purpose("acme", "a-1", 4, "https://api.cartesia.ai"),
        sealing.credential_purpose("acme", "a-1", 3, "https://evil.example"),
        sealing.credential_purpose("umbrella", "a-1", 3, "https://api.cartesia.ai"),
        sealing.workspace_key_purpose("acme", "a-1", 3),
    ],
)
def test_it_does_not_open_for_another_purpose(other: bytes) -> None:
    box = sealing.sealed(Secret("sk_live"), 3, FLEET_PUBLIC, PURPOSE)
    with pytest.raises(sealing.CannotOpen, match="version 3 was sealed for another purpose, or is damaged"):
        sealing.opened(box, KEYS, other)


def test_a_missing_key_is_named_for_the_operator() -> None:
    box = sealing.sealed(Secret("sk_live"), 3, FLEET_PUBLIC, PURPOSE)
    with pytest.raises(sealing.CannotOpen, match=f"version 3 is sealed for key {box.key_id}, have none"):
        sealing.opened(box, {}, PURPOSE)


def test_the_ciphertext_does_not_hold_the_secret() -> None:
    assert b"sk_live" not in sealing.sealed(Secret("sk_live"), 3, FLEET_PUBLIC, PURPOSE).ciphertext
