"""One change: a transaction of a workspace, who makes it, and the audit entries that are committed with it.

Services take a `Unit`, write rows through its connection and `record` what they did; the entries are chained by hash and
inserted as the transaction's last act. The outbox needs no call: triggers fill it. Read next: a slice's service.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from sqlalchemy import insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit.database import Database
from control_plane.tables import audit, audit_heads

Role: TypeAlias = Literal["owner", "admin", "member"]
Action: TypeAlias = Literal["create", "update", "delete", "revoke", "rotate", "bootstrap", "end_session"]

FIRST_HASH = bytes(32)
"""what the first entry of a chain is chained to"""

_ROWS_A_STATEMENT = 1000


@dataclass(frozen=True)
class Actor:
    """Who does it: a principal of the workspace with its role, and what its token is narrowed to (None: nothing)."""

    id: str
    name: str
    role: Role
    scopes: frozenset[str] | None = None
    token_id: str = ""


@dataclass(frozen=True)
class Entry:
    """One audit entry before it has its place in the chain. Secrets are never in `before` and `after`: only "changed"."""

    action: Action
    kind: str
    target: str
    target_name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass
class Unit:
    """What a service works with. `now`: aware, UTC; `new_id`: gives a UUIDv7 each time."""

    connection: AsyncConnection
    workspace: str
    actor: Actor
    request_id: str
    now: datetime
    new_id: Callable[[], str]
    entries: list[Entry] = field(default_factory=list)

    def record(
        self,
        action: Action,
        kind: str,
        target: str,
        target_name: str,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
    ) -> None:
        """Note an audit entry, to be written with the transaction."""
        self.entries.append(Entry(action, kind, target, target_name, before, after))


@dataclass(frozen=True)
class Units:
    """Opens units. clock: Unix seconds; new_id: gives a UUIDv7."""

    database: Database
    clock: Callable[[], float]
    new_id: Callable[[], str]

    @asynccontextmanager
    async def change(self, workspace: str, actor: Actor, request_id: str) -> AsyncIterator[Unit]:
        """One change of the workspace: rows, audit entries and outbox are committed together or not at all."""
        async with self.database.transaction(workspace) as connection:
            unit = Unit(connection, workspace, actor, request_id, self._now(), self.new_id)
            yield unit
            await _write_entries(unit)

    @asynccontextmanager
    async def rehearsal(self, workspace: str, actor: Actor, request_id: str) -> AsyncIterator[Unit]:
        """Like `change`, but rolled back at the end: what a dry run would do, including every check of the database."""
        async with self.database.transaction(workspace) as connection:
            nested = await connection.begin_nested()
            yield Unit(connection, workspace, actor, request_id, self._now(), self.new_id)
            await nested.rollback()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock(), UTC)


def entry_hash(previous: bytes, row: dict[str, Any]) -> bytes:
    """Return the hash that chains an audit row to the one before it. row: the audit table's columns but the two hashes."""
    plain = {name: value for name, value in row.items() if name not in ("hash", "previous_hash")}
    plain["at"] = row["at"].astimezone(UTC).isoformat(timespec="microseconds")
    text_form = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(previous + text_form.encode()).digest()


async def _write_entries(unit: Unit) -> None:
    if not unit.entries:
        return
    # The head's row lock makes the chain's order the order of commits.
    head = (
        await unit.connection.execute(
            select(audit_heads.c.seq, audit_heads.c.hash).where(audit_heads.c.workspace == unit.workspace).with_for_update()
        )
    ).one_or_none()
    seq, previous = (0, FIRST_HASH) if head is None else head
    rows = []
    for entry in unit.entries:
        seq += 1
        row = {
            "workspace": unit.workspace,
            "seq": seq,
            "at": unit.now,
            "actor": unit.actor.id,
            "actor_name": unit.actor.name,
            "action": entry.action,
            "kind": entry.kind,
            "target": entry.target,
            "target_name": entry.target_name,
            "before": entry.before,
            "after": entry.after,
            "request_id": unit.request_id,
        }
        digest = entry_hash(previous, row)
        rows.append({**row, "previous_hash": previous, "hash": digest})
        previous = digest
    for start in range(0, len(rows), _ROWS_A_STATEMENT):
        await unit.connection.execute(insert(audit), rows[start : start + _ROWS_A_STATEMENT])
    if head is None:
        await unit.connection.execute(insert(audit_heads).values(workspace=unit.workspace, seq=seq, hash=previous))
    else:
        await unit.connection.execute(
            update(audit_heads).where(audit_heads.c.workspace == unit.workspace).values(seq=seq, hash=previous)
        )
    unit.entries.clear()


async def wake_publisher(connection: AsyncConnection) -> None:
    """Tell the publisher that there is work; delivered with the commit."""
    await connection.execute(text("SELECT pg_notify('glottis_outbox', '')"))
