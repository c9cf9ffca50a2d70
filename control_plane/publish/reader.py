"""What the publisher reads: the outbox, and the rows of the records that changed, over all workspaces at one moment.

Every function runs in `Database.publisher()`'s transaction. An `ids` of None asks for everything.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.exports import ExportTarget
from contracts.prices import Price
from contracts.snapshot import KINDS
from control_plane.kit.rows import any_of
from control_plane.publish import records
from control_plane.tables import (
    accounts,
    credentials,
    export_targets,
    grants,
    issuers,
    memberships,
    model_subjects,
    models,
    outbox,
    prices,
    principals,
    publication,
    teams,
    tokens,
    workspace_keys,
    workspaces,
)

Ids = Sequence[str] | None


@dataclass(frozen=True)
class Batch:
    """The outbox at one moment. `ids`: its rows; `changed`: kind -> record ids; `revocations`: (key, value) in order."""

    ids: tuple[int, ...]
    changed: dict[str, set[str]]
    revocations: tuple[tuple[str, bytes], ...]
    is_rebuild: bool
    newest: Any  # Any: a datetime, or None


async def batch(connection: AsyncConnection) -> Batch:
    """Return what waits to be published."""
    changed: dict[str, set[str]] = defaultdict(set)
    revocations: list[tuple[str, bytes]] = []
    ids: list[int] = []
    is_rebuild = False
    newest = None
    query = select(outbox.c.id, outbox.c.kind, outbox.c.ids, outbox.c.payload, outbox.c.created_at).order_by(outbox.c.id)
    for identity, kind, record_ids, payload, created_at in await connection.execute(query):
        ids.append(identity)
        newest = created_at if newest is None else max(newest, created_at)
        if kind == "revocations":
            revocations.append((record_ids[0], payload))
        elif kind == "rebuild":
            is_rebuild = True
        else:
            changed[kind].update(record_ids)
    return Batch(tuple(ids), dict(changed), tuple(revocations), is_rebuild, newest)


async def finish(connection: AsyncConnection, ids: Sequence[int]) -> None:
    """Delete outbox rows that are published."""
    for start in range(0, len(ids), 1000):
        await connection.execute(delete(outbox).where(outbox.c.id.in_(ids[start : start + 1000])))


async def current_revision(connection: AsyncConnection) -> int:
    """Return the newest revision that was given."""
    return int((await connection.execute(select(publication.c.revision))).scalar_one())


async def next_revision(connection: AsyncConnection, at_least: int) -> int:
    """Return a revision above every one given before, and not below `at_least`; it is used up when this commits."""
    current = (await connection.execute(select(publication.c.revision).with_for_update())).scalar_one()
    revision = max(int(current) + 1, at_least)
    await connection.execute(update(publication).values(revision=revision))
    return revision


async def records_of(connection: AsyncConnection, kind: str, ids: Ids) -> list[Any]:
    """Return the records of a kind (one of KINDS, but `workspaces`: see there). Any: the kind's record."""
    rows, beside = _SOURCES[kind]
    extra: dict[str, list[Any]] = defaultdict(list)
    if beside is not None:
        query, key = beside(ids)
        for row in (await connection.execute(query)).mappings():
            extra[row[key]].append(row)
    make = _MAKERS[kind]
    return [make(row, extra.get(row["id"], [])) for row in (await connection.execute(rows(ids))).mappings()]


async def workspace_records(connection: AsyncConnection, ids: Ids, public_url: str) -> tuple[list[Any], list[Any]]:
    """Return the workspaces, and the issuers that come with them. Any: Workspace and Issuer records."""
    keys: dict[str, list[Any]] = defaultdict(list)
    for row in (await connection.execute(_where(select(workspace_keys), workspace_keys.c.workspace, ids))).mappings():
        keys[row["workspace"]].append(row)
    found: list[Any] = []
    own: list[Any] = []
    for row in (await connection.execute(_where(select(workspaces), workspaces.c.workspace, ids))).mappings():
        found.append(records.workspace_record(row, keys[row["workspace"]]))
        own.extend(records.own_issuers(row, keys[row["workspace"]], public_url))
    return found, own


async def all_prices(connection: AsyncConnection) -> tuple[Price, ...]:
    """Return the whole price book's entries, in the order of their ids."""
    query = select(prices).order_by(prices.c.workspace, prices.c.id)
    return tuple(records.price_entry(dict(row)) for row in (await connection.execute(query)).mappings())


async def all_export_targets(connection: AsyncConnection) -> tuple[ExportTarget, ...]:
    """Return every workspace's export targets, in the order of their ids."""
    query = select(export_targets).order_by(export_targets.c.workspace, export_targets.c.id)
    return tuple(records.export_target_record(dict(row)) for row in (await connection.execute(query)).mappings())


async def live_revocations(connection: AsyncConnection, now: float) -> list[tuple[str, bytes]]:
    """Return (key, value) of every revocation that can still hit a valid token. now: Unix seconds."""
    moment = datetime.fromtimestamp(now, UTC)
    of_tokens = select(tokens).where(tokens.c.revoked_at.is_not(None), tokens.c.expires_at > moment - records.CLOCK_ALLOWANCE)
    of_principals = select(principals).where(principals.c.tokens_revoked_at > moment - records.LONGEST_TOKEN)
    return [
        *(records.revocation_entry(dict(row)) for row in (await connection.execute(of_tokens)).mappings()),
        *(records.principal_revocation_entry(dict(row)) for row in (await connection.execute(of_principals)).mappings()),
    ]


def _where(query: Select[Any], column: ColumnElement[str], ids: Ids) -> Select[Any]:
    return query if ids is None else query.where(column == any_of(ids))


def _beside(table: Any, key: str, *order: Any) -> Callable[[Ids], tuple[Select[Any], str]]:
    return lambda ids: (_where(select(table).order_by(*order), table.c[key], ids), key)


def _rows(table: Any) -> Callable[[Ids], Select[Any]]:
    return lambda ids: _where(select(table), table.c.id, ids)


_SOURCES: dict[str, tuple[Callable[[Ids], Select[Any]], Callable[[Ids], tuple[Select[Any], str]] | None]] = {
    "issuers": (_rows(issuers), None),
    "teams": (_rows(teams), None),
    "principals": (_rows(principals), _beside(memberships, "principal_id", memberships.c.position)),
    "accounts": (_rows(accounts), _beside(credentials, "account_id", credentials.c.slot)),
    "models": (_rows(models), _beside(model_subjects, "model_id", model_subjects.c.subject)),
    "grants": (_rows(grants), None),
}


def _only_row(make: Callable[[Any], Any]) -> Callable[[Any, Iterable[Any]], Any]:
    return lambda row, _: make(row)


_MAKERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "issuers": _only_row(records.issuer_record),
    "teams": _only_row(records.team_record),
    "principals": lambda row, extra: records.principal_record(row, [member["team_id"] for member in extra]),
    "accounts": records.account_record,
    "models": lambda row, extra: records.model_record(row, [one["subject"] for one in extra]),
    "grants": _only_row(records.grant_record),
}
assert {*_SOURCES, "workspaces"} == set(KINDS)
