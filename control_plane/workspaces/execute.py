"""Do a plan: its steps through the slices' services, in one unit, many rows a statement.

Names become ids here, against what there is and what the earlier steps made. Each kind has one function for making and
one for changing; deletes go by kind at the end. Whatever a service refuses, ends the whole application.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from contracts.secret import Secret
from control_plane.access import service as access
from control_plane.access.service import SubjectColumns
from control_plane.accounts import service as accounts
from control_plane.catalog import service as catalog
from control_plane.kit import resources
from control_plane.kit.rows import Row
from control_plane.kit.unit import Unit
from control_plane.people import service as people
from control_plane.vault import Vault
from control_plane.workspaces import settings
from control_plane.workspaces.plan import Kind, Plan, Step
from control_plane.workspaces.state import Rows, price_key

_PRINCIPAL_KINDS: tuple[Kind, ...] = ("user", "service_account")
_ACCOUNT_COLUMNS = {"ca": "ca_pem", "disabled": "is_disabled"}
_PRINCIPAL_COLUMNS = {"issuer": "issuer_id", "disabled": "is_disabled"}


@dataclass(frozen=True)
class Rules:
    """What the services need to judge: our own issuer's address, and the origins that the operator allows."""

    public_url: str
    allowed_origins: Collection[str]


class Execution:
    """One application under way. found: the workspace's rows as they are; they are kept up to date as names appear."""

    def __init__(self, unit: Unit, found: Rows, rules: Rules, vault: Vault) -> None:
        self._unit = unit
        self._found = found
        self._rules = rules
        self._vault = vault
        self._teams = {row["name"]: row for row in found.teams.values()}
        self._issuers = {row["name"]: row for row in found.issuers.values()}
        self._principals = {row["name"]: row for row in found.principals.values()}
        self._accounts = {row["name"]: row for row in found.accounts.values()}
        self._grants = {(row["account_id"], row["subject"]): row for row in found.grants.values()}
        self._models = {(row["account_id"], row["name"]): row for row in found.models.values()}
        self._prices = {price_key(found, row): row for row in found.prices.values()}

    async def run(self, plan: Plan, credentials: Mapping[tuple[str, str], Secret]) -> None:
        """Do the steps. credentials: (account name, slot) -> the secret, for those that differ from what is stored."""
        by_kind: dict[tuple[str, Kind], list[Step]] = {}
        for step in plan.steps:
            by_kind.setdefault((step.action, step.kind), []).append(step)
        await self._teams_made(by_kind.get(("create", "team"), []))
        for step in by_kind.get(("update", "team"), []):
            await self._team_changed(step)
        await self._issuers_changed(by_kind.get(("create", "issuer"), []), by_kind.get(("update", "issuer"), []))
        for kind in _PRINCIPAL_KINDS:
            await self._principals_made(kind, by_kind.get(("create", kind), []))
            for step in by_kind.get(("update", kind), []):
                await self._principal_changed(step)
        await self._accounts_changed(by_kind.get(("create", "account"), []), by_kind.get(("update", "account"), []))
        await self._credentials_set(credentials)
        await self._models_made(by_kind.get(("create", "model"), []))
        for step in by_kind.get(("update", "model"), []):
            await self._model_changed(step)
        await self._collaborators_attached(by_kind.get(("create", "collaborator"), []))
        for step in by_kind.get(("update", "collaborator"), []):
            await self._collaborator_changed(step)
        await self._prices_replaced(by_kind.get(("create", "price"), []), by_kind.get(("update", "price"), []))
        await self._defaults_set(
            by_kind.get(("update", "workspace"), []), by_kind.get(("create", "team"), []) + by_kind.get(("update", "team"), [])
        )
        await self._deleted({kind: steps for (action, kind), steps in by_kind.items() if action == "delete"})

    async def _teams_made(self, steps: Sequence[Step]) -> None:
        values: list[dict[str, Any]] = [
            {"name": step.name, "default_accounts": {}, "allowed_voices": _after(step).get("allowed_voices")} for step in steps
        ]
        for row in await resources.create(self._unit, people.TEAM, values):
            self._teams[row["name"]] = row

    async def _team_changed(self, step: Step) -> None:
        """Change what is not a default account: those may be made later in the same application."""
        after = _after(step)
        if "allowed_voices" in after:
            row, values = self._teams[step.name], {"allowed_voices": after["allowed_voices"]}
            self._teams[step.name] = await resources.update(self._unit, people.TEAM, row, values)

    async def _issuers_changed(self, making: Sequence[Step], changing: Sequence[Step]) -> None:
        public_url, allowed = self._rules.public_url, self._rules.allowed_origins
        values = [{**_ISSUER_BLANKS, "name": step.name, **self._issuer_values(step)} for step in making]
        for row in await people.create_issuers(self._unit, values, public_url, allowed):
            self._issuers[row["name"]] = row
        for step in changing:
            row = self._issuers[step.name]
            self._issuers[step.name] = await people.update_issuer(self._unit, row, self._issuer_values(step), public_url, allowed)

    def _issuer_values(self, step: Step) -> dict[str, Any]:
        values = _after(step)
        if values.get("jwks") is not None:
            values["jwks"] = values["jwks"].encode()
        if "group_teams" in values:
            values["group_teams"] = {group: self._teams[team]["id"] for group, team in values["group_teams"].items()}
        return values

    async def _principals_made(self, kind: str, steps: Sequence[Step]) -> None:
        values = [{"teams": [], "name": step.name, **self._principal_values(step)} for step in steps]
        for row in await people.create_principals(self._unit, kind, values):
            self._principals[row["name"]] = row

    async def _principal_changed(self, step: Step) -> None:
        row = self._principals[step.name]
        row = {**row, "teams": self._found.teams_of.get(row["id"], [])}
        self._principals[step.name] = await people.update_principal(self._unit, row, self._principal_values(step))

    def _principal_values(self, step: Step) -> dict[str, Any]:
        values = {_PRINCIPAL_COLUMNS.get(name, name): value for name, value in _after(step).items()}
        if values.get("issuer_id") is not None:
            values["issuer_id"] = self._issuers[values["issuer_id"]]["id"]
        if "teams" in values:
            values["teams"] = [self._teams[team]["id"] for team in values["teams"]]
        return values

    async def _accounts_changed(self, making: Sequence[Step], changing: Sequence[Step]) -> None:
        allowed = self._rules.allowed_origins
        values = [{**_ACCOUNT_BLANKS, "name": step.name, **_account_values(step)} for step in making]
        for row in await accounts.create_accounts(self._unit, values, allowed):
            self._accounts[row["name"]] = row
        for step in changing:
            row, _ = await accounts.update_account(self._unit, self._accounts[step.name], _account_values(step), allowed)
            self._accounts[step.name] = row

    async def _credentials_set(self, credentials: Mapping[tuple[str, str], Secret]) -> None:
        for (name, slot), secret in credentials.items():
            if slot == "active":
                keeps = (name, "retiring") not in credentials
                await accounts.set_credential(self._unit, self._vault, self._accounts[name], secret, keep_previous=keeps)
        for (name, slot), secret in credentials.items():
            if slot == "retiring":
                await accounts.set_retiring(self._unit, self._vault, self._accounts[name], secret)

    async def _models_made(self, steps: Sequence[Step]) -> None:
        by_account: dict[str, list[tuple[dict[str, Any], list[SubjectColumns] | None]]] = {}
        for step in steps:
            account, _, name = step.name.partition("/")
            values = {"priority": None, **_after(step)}
            only = values.pop("only", None)
            by_account.setdefault(account, []).append(({"name": name, **values}, self._subjects(only)))
        for account, values_of in by_account.items():
            await catalog.create_models(self._unit, self._accounts[account], values_of)

    async def _model_changed(self, step: Step) -> None:
        row = self._row_of("model", step.name)
        row = {**row, "only": self._found.only_of.get(row["id"], []) if row["is_narrowed"] else None}
        values = _after(step)
        sets_only = "only" in values
        only = self._subjects(values.pop("only", None))
        await catalog.update_model(self._unit, row, values, only, sets_only)

    async def _collaborators_attached(self, steps: Sequence[Step]) -> None:
        by_account: dict[str, list[tuple[SubjectColumns, str, Sequence[str]]]] = {}
        for step in steps:
            account, _, subject = step.name.partition("/")
            values = _after(step)
            entry = (self._subject(subject), values["role"], values.get("operations", []))
            by_account.setdefault(account, []).append(entry)
        for account, values_of in by_account.items():
            await access.attach(self._unit, self._accounts[account]["id"], values_of)

    async def _collaborator_changed(self, step: Step) -> None:
        await access.change(self._unit, self._row_of("collaborator", step.name), _after(step))

    async def _prices_replaced(self, making: Sequence[Step], changing: Sequence[Step]) -> None:
        # An entry of the book does not change: another price from the same time takes the old entry's place.
        await catalog.delete_prices(self._unit, [self._row_of("price", step.name) for step in changing])
        values = []
        for step in [*making, *changing]:
            provider, account, model, unit, start = step.name.split("/")
            old = {} if step.action == "create" else self._row_of("price", step.name)
            after = _after(step)
            values.append(
                {
                    "provider": provider,
                    "account_id": None if account == "*" else self._accounts[account]["id"],
                    "model": model,
                    "unit": unit,
                    "effective_ms": int(start),
                    "price": Decimal(after["price"]) if "price" in after else old["price"],
                    "currency": after["currency"] if "currency" in after else old["currency"],
                }
            )
        await catalog.create_prices(self._unit, values)

    async def _defaults_set(self, workspace: Sequence[Step], teams: Sequence[Step]) -> None:
        for step in teams:
            after = _after(step)
            if "defaults" in after:
                values = {"default_accounts": self._defaults(after["defaults"])}
                await resources.update(self._unit, people.TEAM, self._teams[step.name], values)
        for step in workspace:
            values = _after(step)
            if "defaults" in values:
                values["default_accounts"] = self._defaults(values.pop("defaults"))
            await settings.update_workspace(self._unit, self._found.workspace, values)

    async def _deleted(self, steps: Mapping[Kind, Sequence[Step]]) -> None:
        doomed = {kind: [self._row_of(kind, step.name) for step in of_kind] for kind, of_kind in steps.items()}
        await catalog.delete_prices(self._unit, doomed.get("price", []))
        await access.withdraw(self._unit, doomed.get("collaborator", []))
        await catalog.delete_models(self._unit, doomed.get("model", []))
        if doomed.get("account"):
            await accounts.delete_accounts(self._unit, doomed["account"])
        await people.delete_principals(self._unit, [*doomed.get("user", []), *doomed.get("service_account", [])])
        await people.delete_teams(self._unit, doomed.get("team", []))
        await people.delete_issuers(self._unit, doomed.get("issuer", []))

    def _row_of(self, kind: Kind, name: str) -> Row:
        """Return the row, as it was before this application, that a step names."""
        account, _, rest = name.partition("/")
        if kind == "model":
            return self._models[self._accounts[account]["id"], rest]
        if kind == "collaborator":
            return self._grants[self._accounts[account]["id"], self._subject(rest).text]
        if kind == "price":
            return self._prices[name]
        by_name = {
            "issuer": self._issuers,
            "team": self._teams,
            "user": self._principals,
            "service_account": self._principals,
            "account": self._accounts,
        }
        return by_name[kind][name]

    def _subject(self, text: str) -> SubjectColumns:
        kind, _, name = text.partition(":")
        return access.columns_of(kind, (self._teams if kind == "team" else self._principals)[name]["id"])

    def _subjects(self, texts: Sequence[str] | None) -> list[SubjectColumns] | None:
        return None if texts is None else [self._subject(text) for text in texts]

    def _defaults(self, defaults: Mapping[str, str]) -> dict[str, str]:
        return {provider: self._accounts[account]["id"] for provider, account in defaults.items()}


_ISSUER_BLANKS: dict[str, Any] = {
    "jwks_uri": None,
    "jwks": None,
    "email_claim": None,
    "groups_claim": None,
    "group_teams": {},
}
_ACCOUNT_BLANKS: dict[str, Any] = {"ca_pem": None, "tls_server_name": None, "allowed_voices": None}


def _account_values(step: Step) -> dict[str, Any]:
    values = {_ACCOUNT_COLUMNS.get(name, name): value for name, value in _after(step).items()}
    if values.get("ca_pem") is not None:
        values["ca_pem"] = values["ca_pem"].encode()
    return values


def _after(step: Step) -> dict[str, Any]:
    return {field: after for field, (_, after) in step.fields.items()}
