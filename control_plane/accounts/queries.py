"""Statements about accounts and credentials. Each runs in a transaction of one workspace."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import delete, literal, select, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit.rows import Row, any_of
from control_plane.tables import accounts, credentials, teams, workspaces


async def credentials_of(connection: AsyncConnection, account_ids: Iterable[str]) -> dict[str, list[Row]]:
    """Return account id -> its credentials, the active one first."""
    found: dict[str, list[Row]] = {}
    query = select(credentials).where(credentials.c.account_id == any_of(account_ids)).order_by(credentials.c.slot)
    for row in (await connection.execute(query)).mappings():
        found.setdefault(row["account_id"], []).append(dict(row))
    return found


async def put_credential(connection: AsyncConnection, row: Row) -> None:
    """Write the credential of one slot, in place of what stood there."""
    statement = postgresql.insert(credentials).values(**row)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["workspace", "account_id", "slot"],
            set_={name: statement.excluded[name] for name in ("version", "secret", "sealed", "sealed_for", "created_at")},
        )
    )


async def drop_credentials(connection: AsyncConnection, account_id: str, *slots: str) -> None:
    """Delete the credentials in these slots."""
    await connection.execute(delete(credentials).where(credentials.c.account_id == account_id, credentials.c.slot.in_(slots)))


async def count_up_version(connection: AsyncConnection, account_id: str) -> int:
    """Return the next version of the account's credential; versions are never used twice."""
    query = (
        update(accounts)
        .where(accounts.c.id == account_id)
        .values(credential_version=accounts.c.credential_version + 1)
        .returning(accounts.c.credential_version)
    )
    return int((await connection.execute(query)).scalar_one())


async def forget_defaults(connection: AsyncConnection, account_ids: Iterable[str]) -> None:
    """Take the accounts out of the workspace's and the teams' defaults."""
    for table in (workspaces, teams):
        kept: Any = text(  # Any: a scalar sub-select of jsonb
            "(SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each_text(default_accounts) "
            "WHERE value <> ALL (:gone))"
        ).bindparams(gone=list(account_ids))
        touched = text("EXISTS (SELECT 1 FROM jsonb_each_text(default_accounts) WHERE value = ANY (:gone_too))").bindparams(
            gone_too=list(account_ids)
        )
        await connection.execute(update(table).where(touched).values(default_accounts=kept, version=table.c.version + literal(1)))
