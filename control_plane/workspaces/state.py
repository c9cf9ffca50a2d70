"""What a workspace has, in the terms of the workspace file: for plans, and for export. Pure: rows in, items or YAML out."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import yaml

from control_plane.kit.rows import Row
from control_plane.workspaces.plan import Items, price_name


@dataclass
class Rows:
    """Every row of a workspace, by id where there is one. `teams_of`, `only_of`: ordered; `slots_of`: account -> slots."""

    workspace: Row
    issuers: dict[str, Row] = field(default_factory=dict)
    teams: dict[str, Row] = field(default_factory=dict)
    principals: dict[str, Row] = field(default_factory=dict)
    accounts: dict[str, Row] = field(default_factory=dict)
    models: dict[str, Row] = field(default_factory=dict)
    grants: dict[str, Row] = field(default_factory=dict)
    prices: dict[str, Row] = field(default_factory=dict)
    teams_of: dict[str, list[str]] = field(default_factory=dict)
    only_of: dict[str, list[str]] = field(default_factory=dict)
    slots_of: dict[str, dict[str, Row]] = field(default_factory=dict)


def items_of_rows(found: Rows) -> Items:
    """Return the rows as items, names instead of ids."""
    account_names = {identity: row["name"] for identity, row in found.accounts.items()}
    team_names = {identity: row["name"] for identity, row in found.teams.items()}
    issuer_names = {identity: row["name"] for identity, row in found.issuers.items()}
    items: Items = {
        ("workspace", found.workspace["workspace"]): {
            "name": found.workspace["name"],
            "defaults": _named(found.workspace["default_accounts"], account_names),
            "span_sampling": found.workspace["span_sampling"],
        }
    }
    for row in found.issuers.values():
        items["issuer", row["name"]] = {
            **{
                name: row[name]
                for name in (
                    "issuer",
                    "audiences",
                    "jwks_uri",
                    "algorithms",
                    "subject_claim",
                    "email_claim",
                    "groups_claim",
                    "admits_unregistered",
                    "expiry",
                    "leeway_seconds",
                )
            },
            "jwks": None if row["jwks"] is None else row["jwks"].decode(),
            "group_teams": _named(row["group_teams"], team_names),
        }
    for row in found.teams.values():
        items["team", row["name"]] = {
            "defaults": _named(row["default_accounts"], account_names),
            "allowed_voices": row["allowed_voices"],
        }
    for row in found.principals.values():
        common = {
            "teams": [team_names[team] for team in found.teams_of.get(row["id"], [])],
            "disabled": row["is_disabled"],
        }
        if row["kind"] == "user":
            items["user", row["name"]] = {
                "email": row["email"],
                "role": row["role"],
                "issuer": issuer_names.get(row["issuer_id"]),
                "subject": row["subject"],
                **common,
            }
        else:
            items["service_account", row["name"]] = common
    for row in found.accounts.values():
        items["account", row["name"]] = {
            **{
                name: row[name]
                for name in (
                    "provider",
                    "origin",
                    "credential_scheme",
                    "priority",
                    "tls_server_name",
                    "allowed_voices",
                    "forwards_trace_headers",
                    "region",
                    "plan",
                )
            },
            "ca": None if row["ca_pem"] is None else row["ca_pem"].decode(),
            "disabled": row["is_disabled"],
        }
    for row in found.models.values():
        only = sorted(_named_subject(found, subject) for subject in found.only_of.get(row["id"], []))
        items["model", f"{account_names[row['account_id']]}/{row['name']}"] = {
            "type": row["type"],
            "priority": row["priority"],
            "only": only if row["is_narrowed"] else None,
        }
    for row in found.grants.values():
        items["collaborator", f"{account_names[row['account_id']]}/{_named_subject(found, row['subject'])}"] = {
            "role": row["role"],
            "operations": row["operations"],
        }
    for row in found.prices.values():
        items["price", price_key(found, row)] = {
            "provider": row["provider"],
            "account": account_names.get(row["account_id"]),
            "model": row["model"],
            "unit": row["unit"],
            "effective_ms": row["effective_ms"],
            "price": format(row["price"].normalize(), "f"),
            "currency": row["currency"],
        }
    return items


def price_key(found: Rows, row: Row) -> str:
    """Return the name of a price row, as `plan.price_name` makes it."""
    account = found.accounts.get(row["account_id"])
    return price_name(
        row["provider"], None if account is None else account["name"], row["model"], row["unit"], row["effective_ms"]
    )


def yaml_of(items: Items) -> str:
    """Return the items as a workspace file without credentials; what has its default value is left out."""
    document: dict[str, Any] = {"version": 1}
    accounts: dict[str, dict[str, Any]] = {}
    sections: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("issuers", "teams", "users", "service_accounts", "accounts", "prices")
    }
    plural = {"issuer": "issuers", "team": "teams", "user": "users", "service_account": "service_accounts"}
    for (kind, name), fields in sorted(items.items()):
        kept = {field: value for field, value in fields.items() if value != _DEFAULTS.get(field, _NOTHING)}
        if kind == "workspace":
            document["workspace"] = {"id": name, **kept}
        elif kind in plural:
            if kept.get("jwks") is not None:
                kept["jwks"] = f"value:{kept['jwks']}"
            sections[plural[kind]].append({"name": name, **kept})
        elif kind == "account":
            if kept.get("ca") is not None:
                kept["ca"] = f"value:{kept['ca']}"
            accounts[name] = {"name": name, **kept, "collaborators": [], "models": []}
        elif kind == "price":
            start = kept.pop("effective_ms")
            if start:
                kept["effective"] = datetime.fromtimestamp(start / 1000, UTC).isoformat().replace("+00:00", "Z")
            sections["prices"].append(kept)
    for (kind, name), fields in sorted(items.items()):
        account, _, rest = name.partition("/")
        kept = {field: value for field, value in fields.items() if value != _DEFAULTS.get(field, _NOTHING)}
        if kind == "model":
            accounts[account]["models"].append({"name": rest, **kept})
        elif kind == "collaborator":
            accounts[account]["collaborators"].append({"subject": rest, **kept})
    sections["accounts"] = [accounts[name] for name in sorted(accounts)]
    for account_entry in sections["accounts"]:
        for model in account_entry["models"]:
            # A model's priority of null is the default; an account's default is 100: they share the field's name.
            if model.get("priority", 0) is None:
                del model["priority"]
    document.update({section: entries for section, entries in sections.items() if entries})
    # libyaml writes ten times as fast, where PyYAML was built with it.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)


_NOTHING = object()
_DEFAULTS: dict[str, Any] = {
    "defaults": {},
    "span_sampling": 1.0,
    "jwks_uri": None,
    "jwks": None,
    "subject_claim": "sub",
    "email_claim": None,
    "groups_claim": None,
    "group_teams": {},
    "admits_unregistered": False,
    "expiry": "finish-session",
    "leeway_seconds": 30,
    "email": None,
    "teams": [],
    "issuer": None,
    "subject": None,
    "disabled": False,
    "credential_scheme": "bearer",
    "ca": None,
    "tls_server_name": None,
    "allowed_voices": None,
    "forwards_trace_headers": False,
    "region": "",
    "plan": "",
    "only": None,
    "operations": [],
    "account": None,
}


def _named(ids: dict[str, str], names: dict[str, str]) -> dict[str, str]:
    """Return the mapping with names for ids; what names nothing any more is left out."""
    return {key: names[identity] for key, identity in ids.items() if identity in names}


def _named_subject(found: Rows, subject: str) -> str:
    kind, _, identity = subject.partition(":")
    of_kind = found.teams if kind == "team" else found.principals
    return f"{kind}:{of_kind[identity]['name']}"
