"""A workspace whole: the first owner, applying a file in one transaction, export, moving secrets to new keys."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from cryptography.hazmat.primitives import serialization
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.secret import Secret
from control_plane.accounts import service as accounts
from control_plane.exports import service as exports
from control_plane.kit.problems import Problem, not_found
from control_plane.kit.rows import Row
from control_plane.kit.unit import Actor, Unit, Units, wake_publisher
from control_plane.people import service as people
from control_plane.tables import accounts as accounts_table
from control_plane.tables import (
    credentials,
    export_targets,
    idempotency_keys,
    outbox,
    principals,
    signing_keys,
    workspace_keys,
    workspaces,
)
from control_plane.tokens import signing
from control_plane.tokens.service import API_AUDIENCE, TokenIssuer
from control_plane.vault import Vault
from control_plane.workspaces import queries
from control_plane.workspaces.execute import Execution, Rules
from control_plane.workspaces.plan import SECRET_FIELDS, Items, Plan, Step, items_of, plan, whole_lists
from control_plane.workspaces.state import Rows, items_of_rows
from policy import workspace_file
from policy.workspace_file import InvalidWorkspaceFile, Need, WorkspaceFile, material_problem, needs, parse_document

_OWNER_TOKEN_LIFETIME = timedelta(days=365)
BOOTSTRAP_ACTOR = Actor("bootstrap", "owner secret", "owner")


@dataclass(frozen=True)
class FirstOwner:
    """Who is to own which workspace."""

    workspace: str
    workspace_name: str
    owner: str
    email: str | None


async def bootstrap(
    units: Units,
    issuer: TokenIssuer,
    vault: Vault,
    owner_secret: Secret | None,
    shown: Secret,
    wanted: FirstOwner,
    request_id: str,
) -> tuple[str, Row]:
    """Make the workspace and its owner where they are missing, and return an API token for the owner with its row.

    The secret works once; a new one in the same file gives access again to whoever can write that file. Raises Problem
    owner_secret_refused.
    """
    if owner_secret is None or not hmac.compare_digest(owner_secret.reveal().strip(), shown.reveal().strip()):
        raise Problem("owner_secret_refused")
    digest = hashlib.sha256(owner_secret.reveal().strip()).digest()
    async with units.change(wanted.workspace, BOOTSTRAP_ACTOR, request_id) as unit:
        if await queries.is_secret_used(unit.connection, digest):
            raise Problem("owner_secret_refused", "That secret was used already; put a new one into the owner secret's file.")
        await queries.use_secret(unit.connection, digest, unit.now)
        if await queries.workspace_row(unit.connection) is None:
            await _make_workspace(unit, vault, wanted)
        query = select(principals).where(principals.c.name == wanted.owner)
        owner = (await unit.connection.execute(query)).mappings().one_or_none()
        if owner is None:
            values: dict[str, Any] = {"name": wanted.owner, "email": wanted.email, "role": "owner", "teams": []}
            owner_row = (await people.create_principals(unit, "user", [values]))[0]
        elif owner["kind"] != "user" or owner["role"] != "owner" or owner["is_disabled"]:
            raise Problem("conflict", f"{wanted.owner} is there but is no owner; name another owner.")
        else:
            owner_row = dict(owner)
        row, text = await issuer.mint(
            unit,
            {"principal_id": owner_row["id"], "kind": "personal", "audience": API_AUDIENCE, "name": "first owner"},
            _OWNER_TOKEN_LIFETIME,
        )
        unit.record("bootstrap", "user", owner_row["id"], wanted.owner)
    return text, row


async def _make_workspace(unit: Unit, vault: Vault, wanted: FirstOwner) -> None:
    name = wanted.workspace_name or wanted.workspace
    await queries.make_workspace(
        unit.connection,
        {"workspace": unit.workspace, "name": name, "default_accounts": {}, "created_at": unit.now},
    )
    private, jwk = signing.new_key_pair(f"a{vault.random_bytes(8).hex()}")
    der = private.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    keys = [
        _key_row(unit.workspace, vault, "transcript_key", Secret(vault.random_bytes(32)), None),
        _key_row(unit.workspace, vault, "access_token_key", Secret(der), json.dumps({"keys": [jwk]}, sort_keys=True)),
    ]
    await queries.make_keys(unit.connection, keys)
    unit.record("create", "workspace", unit.workspace, name, None, {"name": name})


def _key_row(workspace: str, vault: Vault, name: str, secret: Secret, public: str | None, version: int = 1) -> Row:
    sealed = vault.sealed_workspace_key(secret, workspace, name, version)
    return {
        "workspace": workspace,
        "name": name,
        "version": version,
        "secret": vault.encrypted(secret, *_key_place(workspace, name)),
        "sealed": sealed.ciphertext,
        "sealed_for": sealed.key_id,
        "public": public,
    }


def _key_place(workspace: str, name: str) -> tuple[str, ...]:
    return ("workspace_keys", workspace, name)


# --- Apply ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """A workspace file with what it refers to, checked. texts: what is not secret; secrets: (account, slot) -> credential."""

    file: WorkspaceFile
    texts: Mapping[str, str]
    secrets: Mapping[tuple[str, str], Secret]


def checked(document: Any, material: Mapping[str, Secret], workspace: str, rules: Rules) -> Wanted:
    """Return the file that the document and the material stand for. Raises Problem invalid_workspace_file."""
    try:
        file = parse_document(document, tuple(rules.allowed_origins))
        problems = [problem for need in needs(file) if (problem := _problem_of(need, material)) is not None]
        if problems:
            raise InvalidWorkspaceFile(problems)
    except InvalidWorkspaceFile as invalid:
        errors = [{"field": problem.field, "sentence": problem.sentence} for problem in invalid.problems[:100]]
        detail = f"{len(invalid.problems)} mistakes; the first: {invalid.problems[0]}"
        raise Problem("invalid_workspace_file", detail, errors) from invalid
    if file.workspace.id != workspace:
        sentence = f"The file is for workspace {file.workspace.id}; this token is for {workspace}."
        raise Problem("invalid_workspace_file", sentence, [{"field": "workspace.id", "sentence": sentence}])
    for number, issuer in enumerate(file.issuers):
        if issuer.kind != "oidc":
            sentence = "The control plane is the issuer of its own tokens; leave this entry out."
            raise Problem("invalid_workspace_file", sentence, [{"field": f"issuers[{number}].kind", "sentence": sentence}])
    texts: dict[str, str] = {}
    secrets: dict[tuple[str, str], Secret] = {}
    for need in needs(file):
        if not need.is_secret:
            texts[need.key] = material[need.key].reveal().decode()
        elif need.key.startswith("accounts."):
            _, account, _, slot = need.key.split(".")
            secrets[account, slot] = material[need.key]
    return Wanted(file, texts, secrets)


def _problem_of(need: Need, material: Mapping[str, Secret]) -> workspace_file.Problem | None:
    value = material.get(need.key)
    if value is None:
        return workspace_file.Problem(None, need.key, "The file refers to this, and it was not sent along.")
    return material_problem(need.key, value)


async def apply(unit: Unit, vault: Vault, wanted: Wanted, rules: Rules, prune: bool) -> Plan:
    """Make the workspace match the file and return what was changed; within the unit, so all of it or nothing."""
    found = await _locked_rows(unit)
    current = items_of_rows(found)
    protected = {("workspace", unit.workspace), *(_keys_of(found, unit.actor.id))}
    made = plan(current, items_of(wanted.file, wanted.texts), whole_lists(wanted.file), prune, frozenset(protected))
    credentials_to_set = _differing_credentials(vault, found, wanted, made)
    await Execution(unit, found, rules, vault).run(made, credentials_to_set)
    secret_steps = [
        Step("update", "account", account, {_field_of(slot): (None, "changed")}) for account, slot in credentials_to_set
    ]
    return Plan((*made.steps, *secret_steps), made.kept)


def _field_of(slot: str) -> str:
    field = "credential" if slot == "active" else "retiring_credential"
    assert field in SECRET_FIELDS
    return field


def _keys_of(found: Rows, principal_id: str) -> list[tuple[Any, str]]:
    row = found.principals.get(principal_id)
    return [] if row is None else [(row["kind"], row["name"])]


async def _locked_rows(unit: Unit) -> Rows:
    """Return the workspace's rows after locking it: two applications run one after the other, each on the other's result."""
    row = (await unit.connection.execute(select(workspaces).with_for_update())).mappings().one_or_none()
    if row is None:
        raise not_found("workspace", unit.workspace)
    return await queries.all_rows(unit.connection, dict(row))


def _differing_credentials(vault: Vault, found: Rows, wanted: Wanted, made: Plan) -> dict[tuple[str, str], Secret]:
    """Return the credentials that are not already stored, or that the plan drops because the account moves."""
    moved = {
        step.name
        for step in made.steps
        if step.kind == "account" and step.action == "update" and {"origin", "ca", "tls_server_name"} & set(step.fields)
    }
    ids = {row["name"]: row for row in found.accounts.values()}
    differing: dict[tuple[str, str], Secret] = {}
    for (name, slot), secret in wanted.secrets.items():
        account = ids.get(name)
        stored = None if account is None else found.slots_of.get(account["id"], {}).get(slot)
        if (
            account is None
            or stored is None
            or name in moved
            or vault.decrypted(stored["secret"], *accounts.place(account, slot, stored["version"])) != secret
        ):
            differing[name, slot] = secret
    return differing


# --- Export ---------------------------------------------------------------------------------------------------------


async def workspace(connection: AsyncConnection, name: str, locks: bool = False) -> Row:
    """Return the workspace's row. Raises Problem not_found; locks: see `rows.locked`."""
    row = await queries.workspace_row(connection, locks)
    if row is None:
        raise not_found("workspace", name)
    return row


async def current_items(connection: AsyncConnection, name: str) -> Items:
    """Return the workspace as items. Raises Problem not_found."""
    return items_of_rows(await queries.all_rows(connection, await workspace(connection, name)))


# --- New keys -------------------------------------------------------------------------------------------------------


async def rewrap(units: Units, vault: Vault) -> int:
    """Move every stored secret to the current key-encryption key and seal it for the current fleet key; return how many.

    Workspace by workspace, each in a transaction; it can be repeated after an interruption.
    """
    async with units.database.publisher() as connection:
        names = list((await connection.execute(select(workspaces.c.workspace).order_by(workspaces.c.workspace))).scalars())
    moved = 0
    for name in names:
        async with units.database.transaction(name) as connection:
            moved += await _rewrap_workspace(connection, vault, name)
    async with units.database.system() as connection:
        for row in list((await connection.execute(select(signing_keys).with_for_update())).mappings()):
            if not vault.is_current(row["private"]):
                place = signing.place(row["id"])
                fresh = vault.encrypted(vault.decrypted(row["private"], *place), *place)
                await connection.execute(update(signing_keys).where(signing_keys.c.id == row["id"]).values(private=fresh))
                moved += 1
    return moved


async def _rewrap_workspace(connection: AsyncConnection, vault: Vault, workspace: str) -> int:
    moved = 0
    query = select(credentials, accounts_table.c.origin).join(
        accounts_table,
        (accounts_table.c.workspace == credentials.c.workspace) & (accounts_table.c.id == credentials.c.account_id),
    )
    for row in list((await connection.execute(query.with_for_update(of=credentials))).mappings()):
        if vault.is_current(row["secret"]) and row["sealed_for"] == vault.fleet_key_id:
            continue
        place = accounts.place({"workspace": workspace, "id": row["account_id"]}, row["slot"], row["version"])
        secret = vault.decrypted(row["secret"], *place)
        sealed = vault.sealed_credential(secret, workspace, row["account_id"], row["version"], row["origin"])
        await connection.execute(
            update(credentials)
            .where(credentials.c.account_id == row["account_id"], credentials.c.slot == row["slot"])
            .values(secret=vault.encrypted(secret, *place), sealed=sealed.ciphertext, sealed_for=sealed.key_id)
        )
        moved += 1
    for row in list((await connection.execute(select(workspace_keys).with_for_update())).mappings()):
        if vault.is_current(row["secret"]) and row["sealed_for"] == vault.fleet_key_id:
            continue
        secret = vault.decrypted(row["secret"], *_key_place(workspace, row["name"]))
        fresh = _key_row(workspace, vault, row["name"], secret, row["public"], row["version"])
        await connection.execute(
            update(workspace_keys)
            .where(workspace_keys.c.name == row["name"])
            .values(secret=fresh["secret"], sealed=fresh["sealed"], sealed_for=fresh["sealed_for"])
        )
        moved += 1
    for row in list((await connection.execute(select(export_targets).with_for_update())).mappings()):
        if row["secret"] is None or (vault.is_current(row["secret"]) and row["sealed_for"] == vault.fleet_key_id):
            continue
        target_place = exports.place(workspace, row["id"], row["secret_version"])
        secret = vault.decrypted(row["secret"], *target_place)
        sealed = vault.sealed_export_headers(secret, workspace, row["id"], row["secret_version"], row["endpoint"])
        await connection.execute(
            update(export_targets)
            .where(export_targets.c.id == row["id"])
            .values(secret=vault.encrypted(secret, *target_place), sealed=sealed.ciphertext, sealed_for=sealed.key_id)
        )
        moved += 1
    # Answers kept for repeated requests live a day; ones closed with an older key are not worth moving.
    for row in list((await connection.execute(select(idempotency_keys))).mappings()):
        if row["status"] and not vault.is_current(row["answer"]):
            await connection.execute(
                idempotency_keys.delete().where(
                    idempotency_keys.c.principal == row["principal"], idempotency_keys.c.key == row["key"]
                )
            )
    return moved


async def republish(units: Units, workspace: str) -> None:
    """Have the publisher write every chunk, the manifest, the prices and the live revocations anew from the database."""
    async with units.database.transaction(workspace) as connection:
        await connection.execute(insert(outbox).values(workspace=workspace, kind="rebuild", ids=[]))
        await wake_publisher(connection)
