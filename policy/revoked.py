"""What is no longer valid, ahead of the snapshot.

A pod adds and removes revocations as the feed tells it; every request and every open session asks here, each time. Nothing
is asked of the token's age but its `iat`. Read next: `contracts.revocations`.
"""

from contracts.revocations import Revocation, RevokedKind
from policy.route import Caller

_ALWAYS = float("inf")
"""stands for a time of issue that no revocation by time hits"""


class Revocations:
    """The revocations that a pod knows of."""

    __slots__ = ("_by_target", "version")

    def __init__(self) -> None:
        self._by_target: dict[tuple[str, RevokedKind, str], Revocation] = {}
        self.version = 0
        """grows with every change"""

    def __len__(self) -> int:
        return len(self._by_target)

    def add(self, revocation: Revocation) -> None:
        """Take a revocation; one of the same workspace, kind and target replaces the one before."""
        self._by_target[revocation.workspace, revocation.kind, revocation.target] = revocation
        self.version += 1

    def remove(self, workspace: str, kind: RevokedKind, target: str) -> None:
        """Forget a revocation, if it is known."""
        if self._by_target.pop((workspace, kind, target), None) is not None:
            self.version += 1

    def hits(self, caller: Caller, now: float) -> str | None:
        """Return the reason why this caller may not go on; None if nothing of it is revoked."""
        if not self._by_target:
            return None
        workspace = caller.workspace
        # A token's own revocation means it and its children whenever they were issued: 0 is before any time.
        if self._is_hit(workspace, "token", caller.token_id, 0, now):
            return "token_revoked"
        parent = caller.parent_token_id
        if parent is not None and self._is_hit(workspace, "token", parent, 0, now):
            return "token_revoked"
        # Tokens of our own are revoked one by one: by its time alone, one minted in the second of the revocation would die.
        issued_at = _ALWAYS if caller.issuer.kind == "glottis" else caller.issued_at
        if self._is_hit(workspace, "principal", caller.principal, issued_at, now):
            return "principal_revoked"
        return None

    def _is_hit(self, workspace: str, kind: RevokedKind, target: str, issued_at: float, now: float) -> bool:
        revocation = self._by_target.get((workspace, kind, target))
        if revocation is None:
            return False
        if revocation.expires_ms is not None and now * 1000 >= revocation.expires_ms:
            return False
        return revocation.before_ms is None or issued_at * 1000 < revocation.before_ms
