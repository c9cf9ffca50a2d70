"""Revocations: whom they hit, and until when."""

from typing import Any

import pytest

from contracts.revocations import Revocation
from contracts.snapshot import Issuer
from policy.revoked import Revocations
from policy.route import Caller

NOW = 1_800_000_000.0


def caller(**changes: Any) -> Caller:
    fields: dict[str, Any] = {
        "workspace": "w1",
        "principal": "u-alice",
        "kind": "user",
        "name": "Alice",
        "teams": (),
        "issuer": Issuer(id="i-idp", workspace="w1", issuer="https://idp.test", audiences=("glottis",)),
        "token_id": "t1",
        "parent_token_id": None,
        "issued_at": NOW - 100,
        "expires_at": NOW + 100,
    }
    return Caller(**(fields | changes))


def revocations(*records: Revocation) -> Revocations:
    known = Revocations()
    for record in records:
        known.add(record)
    return known


def revoked(**changes: Any) -> Revocation:
    fields: dict[str, Any] = {"workspace": "w1", "kind": "token", "target": "t1", "at_ms": 0}
    return Revocation(**(fields | changes))


def test_nothing_revoked_hits_nobody() -> None:
    assert revocations().hits(caller(), NOW) is None


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (revoked(), "token_revoked"),
        (revoked(target="t2"), None),
        (revoked(kind="principal", target="u-alice"), "principal_revoked"),
        (revoked(workspace="w2"), None),
        (revoked(kind="principal", target="t1"), None),
        (revoked(expires_ms=int(NOW * 1000) + 1), "token_revoked"),
        (revoked(expires_ms=int(NOW * 1000)), None),
        (revoked(kind="principal", target="u-alice", before_ms=int((NOW - 100) * 1000)), None),
        (revoked(kind="principal", target="u-alice", before_ms=int((NOW - 100) * 1000) + 1), "principal_revoked"),
        (revoked(before_ms=1), "token_revoked"),
    ],
)
def test_a_revocation_hits_what_it_names(record: Revocation, reason: str | None) -> None:
    assert revocations(record).hits(caller(), NOW) == reason


def test_a_revoked_parent_kills_its_children() -> None:
    assert revocations(revoked(target="t0")).hits(caller(parent_token_id="t0"), NOW) == "token_revoked"


def test_a_token_that_does_not_say_when_it_was_issued_is_older_than_any_time() -> None:
    record = revoked(kind="principal", target="u-alice", before_ms=1)

    assert revocations(record).hits(caller(issued_at=0.0), NOW) == "principal_revoked"


def test_a_revocation_may_be_taken_back() -> None:
    known = revocations(revoked())
    version = known.version

    known.remove("w1", "token", "t1")
    known.remove("w1", "token", "never-there")

    assert known.hits(caller(), NOW) is None
    assert (len(known), known.version) == (0, version + 1)


def test_tokens_of_our_own_are_hit_by_their_ids_and_not_by_their_time() -> None:
    own = Issuer(id="i-own", workspace="w1", issuer="https://glottis.test", audiences=("glottis",), kind="glottis")
    timed = revoked(kind="principal", target="u-alice", before_ms=int(NOW * 1000))
    whole = revoked(kind="principal", target="u-alice")

    assert revocations(timed).hits(caller(issuer=own), NOW) is None
    assert revocations(whole).hits(caller(issuer=own), NOW) == "principal_revoked"
