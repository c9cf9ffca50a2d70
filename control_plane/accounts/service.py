"""Provider accounts and their credentials: origin rules, two slots for rotation, sealing for the gateways.

A credential is encrypted for the database and sealed for publication when it is set, so that publishing needs no secret
and equal rows give equal chunks. Another origin, CA or TLS name drops it: it was meant for the host it was given for.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.secret import Secret
from control_plane.accounts import queries
from control_plane.kit import resources
from control_plane.kit.authorities import check_authorities
from control_plane.kit.problems import Problem, invalid
from control_plane.kit.resources import Resource
from control_plane.kit.rows import Row
from control_plane.kit.unit import Unit
from control_plane.tables import accounts
from control_plane.vault import Vault
from policy.origins import OriginRefused, checked_origin
from policy.workspace_file import material_problem

ACCOUNT = Resource("account", accounts)
_BOUND_TO = ("origin", "ca_pem", "tls_server_name")
"""columns that say which host gets the credential"""


def normal_origin(origin: str, allowed_origins: Collection[str]) -> str:
    """Return the origin's normal form. Raises Problem origin_refused."""
    try:
        return checked_origin(origin, allowed_origins).text
    except OriginRefused as refused:
        raise Problem("origin_refused", str(refused), [{"field": "origin", "sentence": str(refused)}]) from refused


async def create_accounts(unit: Unit, values: Sequence[Mapping[str, Any]], allowed_origins: Collection[str]) -> list[Row]:
    """Make accounts. values: columns of `accounts`."""
    for value in values:
        check_authorities(value["ca_pem"])
    return await resources.create(
        unit,
        ACCOUNT,
        [{"credential_version": 0, **value, "origin": normal_origin(value["origin"], allowed_origins)} for value in values],
    )


async def update_account(unit: Unit, row: Row, values: Mapping[str, Any], allowed_origins: Collection[str]) -> tuple[Row, bool]:
    """Change an account; return it, and whether its credential was dropped because it leads to another host now."""
    values = dict(values)
    check_authorities(values.get("ca_pem"))
    if "origin" in values:
        values["origin"] = normal_origin(values["origin"], allowed_origins)
    drops = any(name in values and values[name] != row[name] for name in _BOUND_TO)
    had = await queries.credentials_of(unit.connection, [row["id"]]) if drops else {}
    if had:
        await queries.drop_credentials(unit.connection, row["id"], "active", "retiring")
    updated = await resources.update(
        unit, ACCOUNT, row, values, {"credential": "set"} if had else None, {"credential": "dropped"} if had else None
    )
    return updated, bool(had)


async def delete_accounts(unit: Unit, doomed: Sequence[Row]) -> None:
    """Delete accounts with their models, grants and prices."""
    await queries.forget_defaults(unit.connection, [row["id"] for row in doomed])
    await resources.delete(unit, ACCOUNT, doomed)


async def set_credential(unit: Unit, vault: Vault, account: Row, credential: Secret, keep_previous: bool) -> int:
    """Make this the account's active credential and return its version; the one before becomes `retiring` or goes."""
    _check_credential(credential)
    before = await queries.credentials_of(unit.connection, [account["id"]])
    active = next((row for row in before.get(account["id"], []) if row["slot"] == "active"), None)
    if active is not None and keep_previous:
        retiring = vault.decrypted(active["secret"], *place(account, "active", active["version"]))
        await _put(unit, vault, account, "retiring", retiring, active["version"], active["created_at"])
    else:
        await queries.drop_credentials(unit.connection, account["id"], "retiring")
    version = await queries.count_up_version(unit.connection, account["id"])
    await _put(unit, vault, account, "active", credential, version, unit.now)
    unit.record(
        "rotate",
        "credential",
        account["id"],
        account["name"],
        {"version": active["version"]} if active is not None else None,
        {"version": version, "credential": "changed"},
    )
    return version


async def set_retiring(unit: Unit, vault: Vault, account: Row, credential: Secret) -> None:
    """Make this the account's retiring credential: still taken by the provider while pods switch over."""
    _check_credential(credential)
    version = await queries.count_up_version(unit.connection, account["id"])
    await _put(unit, vault, account, "retiring", credential, version, unit.now)
    unit.record("rotate", "credential", account["id"], account["name"], None, {"version": version, "retiring": "changed"})


async def drop_credential(unit: Unit, account: Row, *slots: str) -> None:
    """Delete the account's credentials in these slots. Raises Problem credential_missing if there is none."""
    have = await queries.credentials_of(unit.connection, [account["id"]])
    doomed = [row for row in have.get(account["id"], []) if row["slot"] in slots]
    if not doomed:
        raise Problem("credential_missing")
    await queries.drop_credentials(unit.connection, account["id"], *slots)
    for row in doomed:
        unit.record(
            "delete", "credential", account["id"], account["name"], {"slot": row["slot"], "version": row["version"]}, None
        )


async def opened_credential(connection: AsyncConnection, vault: Vault, account: Row, slot: str = "active") -> Secret | None:
    """Return the account's credential in clear, for a test or a comparison; None if the slot is empty."""
    have = await queries.credentials_of(connection, [account["id"]])
    row = next((row for row in have.get(account["id"], []) if row["slot"] == slot), None)
    return None if row is None else vault.decrypted(row["secret"], *place(account, slot, row["version"]))


async def with_credentials(connection: AsyncConnection, found: Sequence[Row]) -> list[Row]:
    """Return the account rows, each with `credentials`: its slots, their versions and times."""
    of_each = await queries.credentials_of(connection, [row["id"] for row in found])
    return [{**row, "has_ca": row["ca_pem"] is not None, "credentials": of_each.get(row["id"], [])} for row in found]


def place(account: Mapping[str, Any], slot: str, version: int) -> tuple[str, ...]:
    """Return the place that a stored credential is bound to."""
    return ("credentials", account["workspace"], account["id"], slot, str(version))


async def _put(unit: Unit, vault: Vault, account: Row, slot: str, secret: Secret, version: int, created_at: datetime) -> None:
    sealed = vault.sealed_credential(secret, account["workspace"], account["id"], version, account["origin"])
    await queries.put_credential(
        unit.connection,
        {
            "workspace": account["workspace"],
            "account_id": account["id"],
            "slot": slot,
            "version": version,
            "secret": vault.encrypted(secret, *place(account, slot, version)),
            "sealed": sealed.ciphertext,
            "sealed_for": sealed.key_id,
            "created_at": created_at,
        },
    )


def _check_credential(credential: Secret) -> None:
    if (problem := material_problem("accounts.x.credential.active", credential)) is not None:
        raise invalid("credential", problem.sentence)
