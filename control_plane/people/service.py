"""Changes of issuers, teams, users and service accounts: the rules that hold whoever asks (API or workspace file).

Functions take resolved ids, and lists where `apply` brings many. Read next: `api`, and `control_plane.workspaces.execute`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.kit import resources, rows
from control_plane.kit.problems import Problem, invalid, not_found
from control_plane.kit.resources import Resource
from control_plane.kit.rows import Row
from control_plane.kit.unit import Actor, Unit
from control_plane.people import queries
from control_plane.tables import accounts, issuers, principals, teams
from policy.workspace_file import Provider, key_set_problem, url_problem

ISSUER = Resource("issuer", issuers)
TEAM = Resource("team", teams)
USER = Resource("user", principals)
SERVICE_ACCOUNT = Resource("service_account", principals)
OF_KIND = {"user": USER, "service_account": SERVICE_ACCOUNT}


# --- Teams ----------------------------------------------------------------------------------------------------------


async def resolved_teams(connection: AsyncConnection, references: Sequence[str]) -> list[str]:
    """Return the ids of the teams, in order. Raises Problem not_found, or invalid_request for one that is named twice."""
    found = await queries.ids_of_teams(connection, references)
    for reference in references:
        if reference not in found:
            raise not_found("team", reference)
    ids = [found[reference] for reference in references]
    if len(set(ids)) != len(ids):
        raise invalid("teams", "A team is listed twice.")
    return ids


async def resolved_defaults(connection: AsyncConnection, defaults: Mapping[Provider, str]) -> dict[str, str]:
    """Return provider -> account id. Raises Problem for an account that is not there or of another provider."""
    resolved: dict[str, str] = {}
    for provider, reference in defaults.items():
        account = await rows.get(connection, accounts, "account", reference)
        if account["provider"] != provider:
            raise invalid("defaults", f"{account['name']} is no {provider} account.")
        resolved[provider] = account["id"]
    return resolved


async def delete_teams(unit: Unit, doomed: Sequence[Row]) -> None:
    """Delete teams; their grants, memberships and places in narrowings go with them."""
    await resources.delete(unit, TEAM, doomed)


# --- Users and service accounts -------------------------------------------------------------------------------------


async def create_principals(unit: Unit, kind: str, values: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Make users or service accounts. values: columns of `principals`, and `teams` (ids in order)."""
    for value in values:
        _check_role(unit.actor, "member", value.get("role", "member"))
        _check_identity(value)
    made = await resources.create(
        unit,
        OF_KIND[kind],
        [
            {
                "kind": kind,
                "email": None,
                "role": "member",
                "issuer_id": None,
                "subject": None,
                "is_disabled": False,
                **{name: value for name, value in row.items() if name != "teams"},
            }
            for row in values
        ],
    )
    wanted = {row["id"]: value["teams"] for row, value in zip(made, values, strict=True) if value["teams"]}
    if wanted:
        await queries.replace_memberships(unit.connection, unit.workspace, wanted)
    return [{**row, "teams": list(value["teams"])} for row, value in zip(made, values, strict=True)]


async def update_principal(unit: Unit, row: Row, values: Mapping[str, Any]) -> Row:
    """Change a principal. row: with `teams`; values: columns and perhaps `teams`. The last owner stays one."""
    _check_role(unit.actor, row["role"], values.get("role", row["role"]))
    if row["role"] == "owner" and not row["is_disabled"]:
        is_owner_after = values.get("role", "owner") == "owner" and not values.get("is_disabled", False)
        if not is_owner_after:
            await _check_an_owner_stays(unit, [row["id"]])
    columns = {name: value for name, value in values.items() if name != "teams"}
    _check_identity({**row, **columns})
    team_ids = list(values.get("teams", row["teams"]))
    team_change: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    if team_ids != row["teams"]:
        await queries.replace_memberships(unit.connection, unit.workspace, {row["id"]: team_ids})
        team_change = ({"teams": row["teams"]}, {"teams": team_ids})
    updated = await resources.update(
        unit, OF_KIND[row["kind"]], {name: value for name, value in row.items() if name != "teams"}, columns, *team_change
    )
    return {**updated, "teams": team_ids}


async def delete_principals(unit: Unit, doomed: Sequence[Row]) -> None:
    """Delete principals with their memberships, grants and tokens. Nobody deletes themselves, nor the last owner."""
    for row in doomed:
        if row["id"] == unit.actor.id:
            raise Problem("conflict", "You cannot delete yourself; another owner can.")
        _check_role(unit.actor, row["role"], "member")
    owners = [row["id"] for row in doomed if row["role"] == "owner" and not row["is_disabled"]]
    if owners:
        await _check_an_owner_stays(unit, owners)
    for kind, resource in OF_KIND.items():
        of_kind = [row for row in doomed if row["kind"] == kind]
        if of_kind:
            await resources.delete(unit, resource, of_kind)


async def with_teams(connection: AsyncConnection, found: Sequence[Row]) -> list[Row]:
    """Return the principal rows, each with `teams`: its team ids in order."""
    of_each = await queries.teams_of(connection, [row["id"] for row in found])
    return [{**row, "teams": of_each.get(row["id"], [])} for row in found]


async def principal(connection: AsyncConnection, kind: str, reference: str, locks: bool = False) -> Row:
    """Return the user or service account with its teams. Raises Problem not_found; locks: see `rows.locked`."""
    row = await rows.get(connection, principals, kind.replace("_", " "), reference, principals.c.kind == kind, locks=locks)
    return (await with_teams(connection, [row]))[0]


async def _check_an_owner_stays(unit: Unit, leaving: Collection[str]) -> None:
    """Raise Problem conflict if nobody but those is an owner; who counts stays one until the transaction ends."""
    if not set(await queries.held_owners(unit.connection)) - set(leaving):
        raise Problem("conflict", "A workspace keeps at least one owner; make another one first.")


def _check_identity(row: Mapping[str, Any]) -> None:
    """Raise Problem invalid_request for a user of an issuer that does not say which, or the other way round."""
    if (row.get("issuer_id") is None) != (row.get("subject") is None):
        raise invalid("subject", "`issuer` and `subject` belong together: give both or neither.")


async def check_is_id(connection: AsyncConnection, field: str, reference: str) -> None:
    """Refuse a name where an id is meant; an id that nobody has any more is taken. Raises Problem invalid_request."""
    ids = await queries.ids_of_principals(connection, reference)
    if ids and reference not in ids:
        raise invalid(field, f"{reference!r} is a name, which may be given again. Write the id: {ids[0]}.")


def _check_role(actor: Actor, before: str, after: str) -> None:
    """Only an owner makes or unmakes an owner."""
    if "owner" in (before, after) and actor.role != "owner":
        raise Problem("forbidden", "Only an owner may change owners.")


# --- Issuers --------------------------------------------------------------------------------------------------------


def check_issuer(row: Mapping[str, Any], public_url: str, allowed_origins: Collection[str]) -> None:
    """Raise Problem for an issuer that must not be registered: ours, or one whose keys may not be fetched."""
    if row["issuer"].rstrip("/") == public_url or row["issuer"].startswith(f"{public_url}/"):
        raise invalid("issuer", "That is this control plane's own issuer; its tokens need no registration.")
    if len(set(row["audiences"])) != len(row["audiences"]):
        raise invalid("audiences", "An audience is listed twice.")
    if row["jwks"] is not None and row["jwks_uri"] is not None:
        raise invalid("jwks_uri", "Give `jwks` or `jwks_uri`, not both.")
    if row["group_teams"] and row["groups_claim"] is None:
        raise invalid("group_teams", "Name the claim that carries the groups in `groups_claim`.")
    if row["jwks"] is None:
        field = "issuer" if row["jwks_uri"] is None else "jwks_uri"
        if (sentence := url_problem(row[field], tuple(allowed_origins))) is not None:
            raise Problem("origin_refused", sentence, [{"field": field, "sentence": sentence}])
    elif (sentence := key_set_problem(row["jwks"])) is not None:
        raise invalid("jwks", sentence)


async def create_issuers(
    unit: Unit, values: Iterable[Mapping[str, Any]], public_url: str, allowed_origins: Collection[str]
) -> list[Row]:
    """Register issuers. values: columns of `issuers`, `group_teams` with team ids."""
    made = []
    for value in values:
        check_issuer(value, public_url, allowed_origins)
        row = (await resources.create(unit, ISSUER, [value]))[0]
        await queries.replace_audiences(unit.connection, unit.workspace, row["id"], row["issuer"], row["audiences"])
        made.append(row)
    return made


async def update_issuer(
    unit: Unit, row: Row, values: Mapping[str, Any], public_url: str, allowed_origins: Collection[str]
) -> Row:
    """Change an issuer's settings."""
    check_issuer({**row, **values}, public_url, allowed_origins)
    updated = await resources.update(unit, ISSUER, row, values)
    if (updated["issuer"], updated["audiences"]) != (row["issuer"], row["audiences"]):
        await queries.replace_audiences(unit.connection, unit.workspace, row["id"], updated["issuer"], updated["audiences"])
    return updated


async def delete_issuers(unit: Unit, doomed: Sequence[Row]) -> None:
    """Delete issuers. Raises Problem in_use while users are identified by one."""
    await resources.delete(unit, ISSUER, doomed)
