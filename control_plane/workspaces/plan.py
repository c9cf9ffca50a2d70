"""What applying a workspace file would change: two sides in, a list of changes out. Pure.

Both sides are `Items`: (kind, name) -> fields, in the file's terms, names instead of ids. A list that is in the file is
whole (an account's collaborators and models); what whole sections do not name is only deleted when pruning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from policy.origins import parse_origin
from policy.workspace_file import AccountEntry, WorkspaceFile, effective_ms

Kind: TypeAlias = Literal["workspace", "issuer", "team", "user", "service_account", "account", "model", "collaborator", "price"]
KINDS: tuple[Kind, ...] = (
    "workspace", "issuer", "team", "user", "service_account", "account", "model", "collaborator", "price",
)  # fmt: skip
"""in the order in which they are made; they are deleted in the other order"""

Key: TypeAlias = tuple[Kind, str]
Items: TypeAlias = dict[Key, dict[str, Any]]  # Any: JSON values

SECRET_FIELDS = frozenset({"credential", "retiring_credential"})


@dataclass(frozen=True)
class Step:
    """One change. fields: for a create all, for an update those that differ: name -> (before, after)."""

    action: Literal["create", "update", "delete"]
    kind: Kind
    name: str
    fields: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Plan:
    """The steps in the order of doing, and what stays although the file does not name it."""

    steps: tuple[Step, ...]
    kept: tuple[str, ...]


def items_of(file: WorkspaceFile, texts: Mapping[str, str]) -> Items:
    """Return the file as items. texts: `Need.key` -> text of what is not secret (key sets, certificate authorities)."""
    items: Items = {
        ("workspace", file.workspace.id): {
            "name": file.workspace.name or file.workspace.id,
            "defaults": dict(file.workspace.defaults),
            "span_sampling": file.workspace.span_sampling,
        }
    }
    for issuer in file.issuers:
        items["issuer", issuer.name] = {
            "issuer": issuer.issuer,
            "audiences": list(issuer.audiences),
            "jwks_uri": issuer.jwks_uri,
            "jwks": None if issuer.jwks is None else texts[f"issuers.{issuer.name}.jwks"],
            "algorithms": list(issuer.algorithms),
            "subject_claim": issuer.subject_claim,
            "email_claim": issuer.email_claim,
            "groups_claim": issuer.groups_claim,
            "group_teams": dict(issuer.group_teams),
            "admits_unregistered": issuer.admits_unregistered,
            "expiry": issuer.expiry,
            "leeway_seconds": issuer.leeway_seconds,
        }
    for team in file.teams:
        items["team", team.name] = {
            "defaults": dict(team.defaults),
            "allowed_voices": None if team.allowed_voices is None else list(team.allowed_voices),
        }
    for user in file.users:
        items["user", user.name] = {
            "email": user.email,
            "role": user.role,
            "teams": list(user.teams),
            "issuer": user.issuer,
            "subject": user.subject,
            "disabled": user.disabled,
        }
    for service in file.service_accounts:
        items["service_account", service.name] = {"teams": list(service.teams), "disabled": service.disabled}
    for account in file.accounts:
        items.update(_account_items(account, texts))
    for price in file.prices:
        start = effective_ms(price.effective)
        items["price", price_name(price.provider, price.account, price.model, price.unit, start)] = {
            "provider": price.provider,
            "account": price.account,
            "model": price.model,
            "unit": price.unit,
            "effective_ms": start,
            "price": format(price.price.normalize(), "f"),
            "currency": price.currency,
        }
    return items


def _account_items(account: AccountEntry, texts: Mapping[str, str]) -> Items:
    items: Items = {
        ("account", account.name): {
            "provider": account.provider,
            "origin": parse_origin(account.origin).text,
            "credential_scheme": account.credential_scheme,
            "priority": account.priority,
            "ca": None if account.ca is None else texts[f"accounts.{account.name}.ca"],
            "tls_server_name": account.tls_server_name,
            "allowed_voices": None if account.allowed_voices is None else list(account.allowed_voices),
            "forwards_trace_headers": account.forwards_trace_headers,
            "region": account.region,
            "plan": account.plan,
            "disabled": account.disabled,
        }
    }
    for model in account.models or ():
        items["model", f"{account.name}/{model.name}"] = {
            "type": model.type,
            "priority": model.priority,
            "only": None if model.only is None else sorted(set(model.only)),
        }
    for collaborator in account.collaborators or ():
        items["collaborator", f"{account.name}/{collaborator.subject}"] = {
            "role": collaborator.role,
            "operations": sorted(set(collaborator.operations)),
        }
    return items


def whole_lists(file: WorkspaceFile) -> frozenset[tuple[Kind, str]]:
    """Return (kind, account) of the lists that the file gives whole: what they do not name is withdrawn without pruning."""
    found: set[tuple[Kind, str]] = set()
    for account in file.accounts:
        if account.models is not None:
            found.add(("model", account.name))
        if account.collaborators is not None:
            found.add(("collaborator", account.name))
    return frozenset(found)


def price_name(provider: str, account: str | None, model: str, unit: str, start_ms: int) -> str:
    """Return the name of a price entry: what makes it one of a kind."""
    return "/".join((provider, account or "*", model, unit, str(start_ms)))


def plan(current: Items, wanted: Items, whole: frozenset[tuple[Kind, str]], prune: bool, protected: frozenset[Key]) -> Plan:
    """Return what leads from the current state to the wanted one.

    whole: from `whole_lists`; protected: never deleted (who applies; the workspace). A deleted account takes its models
    and collaborators along, so they are not listed.
    """
    making: list[Step] = []
    doomed: list[Step] = []
    kept: list[str] = []
    for kind in KINDS:
        for key in sorted(name for of_kind, name in wanted if of_kind == kind):
            step = _make_or_update(kind, key, current.get((kind, key)), wanted[kind, key])
            if step is not None:
                making.append(step)
    gone = {name for kind, name in current if kind == "account" and ("account", name) not in wanted} if prune else set()
    for kind in reversed(KINDS):
        for name in sorted(name for of_kind, name in current if of_kind == kind and (kind, name) not in wanted):
            account = name.partition("/")[0] if kind in ("model", "collaborator") else ""
            if account in gone:
                continue
            if (kind, name) in protected or not (prune or (kind, account) in whole):
                kept.append(f"{kind} {name}")
                continue
            doomed.append(Step("delete", kind, name, {field: (value, None) for field, value in current[kind, name].items()}))
    return Plan(tuple([*making, *doomed]), tuple(sorted(kept)))


def _make_or_update(kind: Kind, name: str, before: dict[str, Any] | None, after: dict[str, Any]) -> Step | None:
    if before is None:
        return Step("create", kind, name, {field: (None, value) for field, value in after.items() if value is not None})
    differing = {field: (before.get(field), value) for field, value in after.items() if before.get(field) != value}
    return Step("update", kind, name, differing) if differing else None
