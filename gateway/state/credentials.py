"""Opens what is sealed to the fleet: provider credentials and workspaces' own keys. The one place in the gateway that does.

A credential is opened when an exchange first needs it and kept in clear in memory only, by account, version and origin; it
is bound to these, so a record that was moved does not open. In static mode the secrets come from the file's references.
Read next: `contracts.sealing`.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from contracts import sealing
from contracts.secret import Secret
from contracts.snapshot import Account, Sealed, Workspace


class NoCredential(Exception):
    """An account whose credential this pod cannot use; the text is a sentence for the operator, without secrets."""


class Credentials:
    """The opened credentials of one pod. fleet_keys: raw X25519 private keys."""

    def __init__(self, fleet_keys: Iterable[Secret] = ()) -> None:
        self._fleet_keys = {sealing.fleet_key_id(sealing.fleet_public_key(key)): key for key in fleet_keys}
        self._of_account: dict[str, tuple[Account, Secret]] = {}
        self._of_workspace: dict[tuple[str, str], tuple[Sealed, Secret | None]] = {}
        self._given: dict[str, Secret] = {}
        self._given_transcript_key: Secret | None = None

    @classmethod
    def given(
        cls, credentials: Mapping[tuple[str, Literal["active", "retiring"]], Secret], transcript_key: Secret | None
    ) -> "Credentials":
        """Return credentials that came in clear, with a file: (account id, slot) -> secret."""
        made = cls()
        made._given = {account: secret for (account, slot), secret in credentials.items() if slot == "active"}
        made._given_transcript_key = transcript_key
        return made

    def of(self, account: Account) -> Secret:
        """Return the account's active credential. Raises NoCredential."""
        cached = self._of_account.get(account.id)
        if cached is not None and cached[0] is account:
            return cached[1]
        secret = self._given.get(account.id) or self._opened(account)
        self._of_account[account.id] = (account, secret)
        return secret

    def transcript_key(self, workspace: Workspace) -> Secret | None:
        """Return the key of the workspace's transcript hashes; None if it has none that this pod can open."""
        if self._given_transcript_key is not None:
            return self._given_transcript_key
        return self._workspace_key(workspace.id, "transcript_key", workspace.transcript_key)

    def access_token_key(self, workspace: Workspace) -> Secret | None:
        """Return the key that signs `/access-token` answers (PKCS8 DER); None if there is none that this pod can open."""
        return self._workspace_key(workspace.id, "access_token_key", workspace.access_token_key)

    def _opened(self, account: Account) -> Secret:
        for credential in account.credentials:
            if credential.slot == "active":
                break
        else:
            raise NoCredential(f"account {account.name} has no credential: save one in the control plane")
        box = credential.sealed
        purpose = sealing.credential_purpose(account.workspace, account.id, box.version, account.origin)
        try:
            return sealing.opened(box, self._fleet_keys, purpose)
        except sealing.CannotOpen as error:
            raise NoCredential(f"cannot open credential of account {account.name}: {error}") from error

    def _workspace_key(self, workspace: str, name: str, box: Sealed | None) -> Secret | None:
        if box is None:
            return None
        cached = self._of_workspace.get((workspace, name))
        if cached is not None and cached[0] == box:
            return cached[1]
        purpose = sealing.workspace_key_purpose(workspace, name, box.version)
        try:
            key = sealing.opened(box, self._fleet_keys, purpose)
        except sealing.CannotOpen:
            key = None
        self._of_workspace[workspace, name] = (box, key)
        return key
