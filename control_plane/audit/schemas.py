"""What the API gives of the audit log."""

from typing import Any

from pydantic import Field

from control_plane.kit.shapes import Answer, Moment


class AuditEntry(Answer):
    """Who did what to which thing, with its place in the hash chain."""

    seq: int
    at: Moment
    actor: str = Field(description="principal id, or bootstrap, or system")
    actor_name: str
    action: str
    kind: str
    target: str
    target_name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str
    previous_hash: str = Field(description="hexadecimal SHA-256")
    hash: str = Field(description="hexadecimal SHA-256 over previous_hash and the entry's canonical JSON")


class Verified(Answer):
    """Whether the chain is whole. `broken_at`: the first entry that does not fit."""

    entries: int
    is_whole: bool
    broken_at: int | None
    head: str = Field(description="the last hash, hexadecimal: keep it elsewhere to prove later that nothing was cut off")
