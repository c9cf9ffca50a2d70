"""Export targets: the egress rule, and secret headers that are bound to the endpoint that they were given for."""

from collections.abc import Collection, Mapping
from typing import Any

from contracts import codec
from contracts.exports import SecretHeaders
from contracts.secret import Secret
from control_plane.kit import resources
from control_plane.kit.authorities import check_authorities
from control_plane.kit.problems import Problem, invalid
from control_plane.kit.resources import Resource
from control_plane.kit.rows import Row
from control_plane.kit.unit import Unit
from control_plane.tables import export_targets
from control_plane.vault import Vault
from policy.workspace_file import url_problem

TARGET = Resource("export_target", export_targets)


async def create_target(
    unit: Unit, vault: Vault, values: Mapping[str, Any], secrets: Mapping[str, str], allowed_origins: Collection[str]
) -> Row:
    """Make a target. values: columns of `export_targets`; secrets: header -> value. Raises Problem origin_refused."""
    _check(values["endpoint"], secrets, allowed_origins)
    check_authorities(values["ca_pem"])
    blank = {"secret": None, "sealed": None, "sealed_for": None, "secret_version": 0}
    row = (await resources.create(unit, TARGET, [{**blank, **values}]))[0]
    return await _with_secrets(unit, vault, row, secrets) if secrets else row


async def update_target(
    unit: Unit,
    vault: Vault,
    row: Row,
    values: Mapping[str, Any],
    secrets: Mapping[str, str] | None,
    allowed_origins: Collection[str],
) -> Row:
    """Change a target. secrets: None leaves them, unless the endpoint or CA is another one now."""
    _check(values.get("endpoint", row["endpoint"]), secrets or {}, allowed_origins)
    check_authorities(values.get("ca_pem"))
    moves = any(name in values and values[name] != row[name] for name in ("endpoint", "ca_pem"))
    if secrets is None and not moves:
        return await resources.update(unit, TARGET, row, values)
    row = await resources.update(unit, TARGET, row, {**values, "secret": None, "sealed": None, "sealed_for": None})
    return await _with_secrets(unit, vault, row, secrets) if secrets else row


def place(workspace: str, target: str, version: int) -> tuple[str, ...]:
    """Return the place that stored secret headers are bound to."""
    return ("export_targets", workspace, target, str(version))


async def _with_secrets(unit: Unit, vault: Vault, row: Row, secrets: Mapping[str, str]) -> Row:
    version = row["secret_version"] + 1
    secret = Secret(codec.encode(SecretHeaders(headers=dict(secrets))))
    sealed = vault.sealed_export_headers(secret, unit.workspace, row["id"], version, row["endpoint"])
    return await resources.update(
        unit,
        TARGET,
        row,
        {
            "secret": vault.encrypted(secret, *place(unit.workspace, row["id"], version)),
            "sealed": sealed.ciphertext,
            "sealed_for": sealed.key_id,
            "secret_version": version,
        },
    )


def _check(endpoint: str, secrets: Mapping[str, str], allowed_origins: Collection[str]) -> None:
    if (sentence := url_problem(endpoint, tuple(allowed_origins))) is not None:
        raise Problem("origin_refused", sentence, [{"field": "endpoint", "sentence": sentence}])
    for value in secrets.values():
        if not value or len(value) > 4096 or not value.isascii() or not value.isprintable():
            raise invalid("secret_headers", "A header's value is 1 to 4096 printable ASCII characters.")
