"""A revocation or session command is acted on only where the control plane put it, under a pinned key."""

import msgspec
import pytest

from contracts import codec, manifest, revocations, signing
from contracts.revocations import Command, CommandRefused, EndSession, Revocation
from contracts.secret import Secret

KEY = Secret(bytes(range(32)))
PUBLIC = signing.public_key_of(KEY)
REVOCATION = Revocation(workspace="acme", kind="token", target="t-1", at_ms=1)
END = EndSession(workspace="acme", exchange="e-1", at_ms=1, expires_ms=2)


@pytest.mark.parametrize(("command", "key"), [(REVOCATION, "acme.token.t-1"), (END, "acme.session.e-1")])
def test_a_signed_command_is_read_back_under_its_own_key(command: Command, key: str) -> None:
    assert revocations.key_of(command) == key
    assert revocations.opened(key, revocations.signed(command, KEY), [PUBLIC]) == command


@pytest.mark.parametrize(
    ("key", "data", "reason"),
    [
        ("acme.token.t-1", codec.encode(REVOCATION), "undecodable"),
        ("acme.token.t-1", b"\xc1", "undecodable"),
        ("acme.token.t-1", signing.signed(b"\xc1", b"glottis revocation v1\0", KEY), "undecodable"),
        ("acme.token.t-1", revocations.signed(REVOCATION, Secret(bytes(32))), "foreign_key"),
        ("acme.token.t-1", manifest.signed(1, 1, [], KEY), "unsigned"),
        ("acme.token.e-1", revocations.signed(END, KEY), "unsigned"),
        ("acme.session.t-1", revocations.signed(REVOCATION, KEY), "unsigned"),
        ("acme.token.t-2", revocations.signed(REVOCATION, KEY), "misplaced"),
        ("other.token.t-1", revocations.signed(REVOCATION, KEY), "misplaced"),
        ("acme.session.e-2", revocations.signed(END, KEY), "misplaced"),
    ],
)
def test_what_is_not_signed_for_the_place_where_it_stands_is_refused(key: str, data: bytes, reason: str) -> None:
    with pytest.raises(CommandRefused) as refused:
        revocations.opened(key, data, [PUBLIC])

    assert refused.value.reason == reason


@pytest.mark.parametrize("command", [REVOCATION, END])
def test_a_pod_from_before_there_were_signatures_reads_the_command_alone(command: Command) -> None:
    assert codec.decode(revocations.signed(command, KEY), type(command)) == command


def test_what_stands_beside_a_signed_command_is_not_acted_on() -> None:
    fields = msgspec.msgpack.decode(revocations.signed(REVOCATION, KEY))
    forged = codec.encode_fields({**fields, "workspace": "other", "target": "t-2"})

    assert revocations.opened("acme.token.t-1", forged, [PUBLIC]) == REVOCATION
    with pytest.raises(CommandRefused):
        revocations.opened("other.token.t-2", forged, [PUBLIC])
