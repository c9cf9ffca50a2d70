"""What applying a workspace file would change; and that an export says the same as what it was made from."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.workspaces.plan import Items, Plan, items_of, plan, whole_lists
from control_plane.workspaces.state import yaml_of
from policy.workspace_file import parse

FILE = """\
version: 1
workspace: {id: acme, name: Acme}
teams: [{name: voice}]
users: [{name: ada, teams: [voice], role: owner}]
accounts:
  - name: eu
    provider: cartesia
    origin: https://api.cartesia.ai
    collaborators: [{subject: team:voice, operations: [voices.write]}]
    models: [{name: sonic-3, type: text-to-speech, only: [user:ada]}]
prices: [{provider: cartesia, account: eu, unit: characters, price: 0.00003, effective: 2026-01-01}]
"""


def items(text: str) -> Items:
    return items_of(parse(text), {})


def planned(before: str, after: str, prune: bool = False, protected: frozenset[Any] = frozenset()) -> Plan:
    return plan(items(before), items(after), whole_lists(parse(after)), prune, protected)


def steps(made: Plan) -> list[tuple[str, str, str]]:
    return [(step.action, step.kind, step.name) for step in made.steps]


def test_the_same_file_changes_nothing() -> None:
    assert planned(FILE, FILE) == Plan((), ())


def test_things_are_made_before_what_refers_to_them() -> None:
    nothing: Items = {}
    made = plan(nothing, items(FILE), frozenset(), False, frozenset())
    assert steps(made) == [
        ("create", "workspace", "acme"),
        ("create", "team", "voice"),
        ("create", "user", "ada"),
        ("create", "account", "eu"),
        ("create", "model", "eu/sonic-3"),
        ("create", "collaborator", "eu/team:voice"),
        ("create", "price", "cartesia/eu/*/characters/1767225600000"),
    ]


def test_an_update_names_the_fields_that_differ_alone() -> None:
    made = planned(FILE, FILE.replace("name: Acme", "name: Acme Inc"))
    assert [(step.action, step.kind, dict(step.fields)) for step in made.steps] == [
        ("update", "workspace", {"name": ("Acme", "Acme Inc")})
    ]


def test_a_list_in_the_file_is_whole_without_pruning() -> None:
    made = planned(FILE, FILE.replace("collaborators: [{subject: team:voice, operations: [voices.write]}]", "collaborators: []"))
    assert steps(made) == [("delete", "collaborator", "eu/team:voice")]


def test_a_list_that_is_absent_is_left_alone() -> None:
    made = planned(FILE, FILE.replace("    collaborators: [{subject: team:voice, operations: [voices.write]}]\n", ""))
    assert (steps(made), made.kept) == ([], ("collaborator eu/team:voice",))


def test_what_the_file_does_not_name_stays_unless_pruned() -> None:
    without = "version: 1\nworkspace: {id: acme, name: Acme}\nusers: [{name: ada, role: owner}]\n"
    kept = planned(FILE, without)
    assert steps(kept) == [("update", "user", "ada")]
    assert kept.kept == (
        "account eu",
        "collaborator eu/team:voice",
        "model eu/sonic-3",
        "price cartesia/eu/*/characters/1767225600000",
        "team voice",
    )
    pruned = planned(FILE, without, prune=True)
    # The account takes its models, collaborators and prices along.
    assert steps(pruned) == [
        ("update", "user", "ada"),
        ("delete", "price", "cartesia/eu/*/characters/1767225600000"),
        ("delete", "account", "eu"),
        ("delete", "team", "voice"),
    ]


def test_who_applies_is_never_pruned() -> None:
    without = "version: 1\nworkspace: {id: acme, name: Acme}\n"
    made = planned(FILE, without, prune=True, protected=frozenset({("user", "ada")}))
    assert ("delete", "user", "ada") not in steps(made)
    assert "user ada" in made.kept


@pytest.mark.parametrize("text", [FILE, "version: 1\nworkspace: {id: acme}\n"])
def test_an_export_reads_back_as_the_same_items(text: str) -> None:
    assert items(yaml_of(items(text))) == items(text)


def test_an_origin_in_another_spelling_is_no_change() -> None:
    assert planned(FILE, FILE.replace("https://api.cartesia.ai", "https://API.cartesia.ai:443/")) == Plan((), ())
