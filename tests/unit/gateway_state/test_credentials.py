"""Credentials open for the account, version and origin that they were sealed for, and for nothing else."""

from __future__ import annotations

import msgspec
import pytest

from contracts import sealing
from contracts.secret import Secret
from contracts.snapshot import Account, Credential, Sealed, Workspace
from gateway.state.credentials import Credentials, NoCredential

FLEET_KEY = Secret(b"f" * 32)
CREDENTIAL = Secret("sk_car_1")
ACCOUNT = Account(id="a-eu", workspace="w1", name="cartesia-eu", provider="cartesia", origin="https://api.cartesia.ai")


def sealed(account: Account = ACCOUNT, secret: Secret = CREDENTIAL, version: int = 3) -> Sealed:
    purpose = sealing.credential_purpose(account.workspace, account.id, version, account.origin)
    return sealing.sealed(secret, version, sealing.fleet_public_key(FLEET_KEY), purpose)


def with_credential(box: Sealed, **changes: str) -> Account:
    return msgspec.structs.replace(ACCOUNT, credentials=(Credential(slot="active", sealed=box),), **changes)


def test_a_sealed_credential_opens() -> None:
    assert Credentials([FLEET_KEY]).of(with_credential(sealed())) == CREDENTIAL


def test_a_new_version_is_opened_anew() -> None:
    credentials = Credentials([FLEET_KEY])
    credentials.of(with_credential(sealed()))

    assert credentials.of(with_credential(sealed(secret=Secret("sk_car_2"), version=4))) == Secret("sk_car_2")


@pytest.mark.parametrize("change", [{"origin": "https://evil.test"}, {"id": "a-us"}, {"workspace": "w2"}])
def test_a_credential_that_was_moved_does_not_open(change: dict[str, str]) -> None:
    with pytest.raises(NoCredential, match=r"cannot open credential of account cartesia-eu: version 3 was sealed for another"):
        Credentials([FLEET_KEY]).of(with_credential(sealed(), **change))


def test_a_credential_for_another_fleet_says_which_key_it_needs() -> None:
    with pytest.raises(NoCredential, match=r"account cartesia-eu: version 3 is sealed for key \w+, have"):
        Credentials([Secret(b"o" * 32)]).of(with_credential(sealed()))


def test_an_account_without_a_credential_says_what_to_do() -> None:
    with pytest.raises(NoCredential, match="account cartesia-eu has no credential: save one"):
        Credentials([FLEET_KEY]).of(ACCOUNT)


def test_a_retiring_credential_is_not_the_active_one() -> None:
    only_retiring = msgspec.structs.replace(ACCOUNT, credentials=(Credential(slot="retiring", sealed=sealed()),))

    with pytest.raises(NoCredential):
        Credentials([FLEET_KEY]).of(only_retiring)


def test_credentials_of_a_file_come_in_clear() -> None:
    credentials = Credentials.given({("a-eu", "active"): CREDENTIAL, ("a-eu", "retiring"): Secret("old")}, Secret(b"k" * 16))

    assert credentials.of(ACCOUNT) == CREDENTIAL
    assert credentials.transcript_key(Workspace(id="w1", name="W")) == Secret(b"k" * 16)


def test_a_workspaces_key_opens_for_its_own_workspace() -> None:
    purpose = sealing.workspace_key_purpose("w1", "transcript_key", 1)
    box = sealing.sealed(Secret(b"t" * 32), 1, sealing.fleet_public_key(FLEET_KEY), purpose)
    credentials = Credentials([FLEET_KEY])

    assert credentials.transcript_key(Workspace(id="w1", name="W", transcript_key=box)) == Secret(b"t" * 32)
    assert credentials.transcript_key(Workspace(id="w2", name="W", transcript_key=box)) is None
    assert credentials.transcript_key(Workspace(id="w3", name="W")) is None
