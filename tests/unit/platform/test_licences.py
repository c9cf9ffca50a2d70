"""The licence check fails on what it must fail on."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def licences() -> ModuleType:
    spec = importlib.util.spec_from_file_location("licences", Path("deploy/dev/licences.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "declared", "problem"),
    [
        ("a", ["mit"], None),
        ("a", ["apache-2.0", "bsd-3-clause"], None),
        ("a", ["gpl-3.0-or-later"], "is under gpl-3.0-or-later"),
        ("a", ["mit", "agpl-3.0-only"], "is under agpl-3.0-only"),
        ("a", ["gnu general public license v3 (gplv3)"], "is under gnu general public license v3 (gplv3)"),
        ("a", ["lgpl-3.0-or-later"], "is under lgpl-3.0-or-later"),
        ("lameenc", ["lgpl-3.0-or-later"], None),
        ("lameenc", ["gpl-3.0-or-later"], "is under gpl-3.0-or-later"),
        ("a", ["proprietary"], "is under proprietary"),
        ("a", [], "declares no licence"),
    ],
)
def test_a_licence_is_permissive_listed_or_a_problem(
    licences: ModuleType, name: str, declared: list[str], problem: str | None
) -> None:
    assert licences.problem(name, declared) == problem


def test_the_default_install_is_followed_through_the_extras_it_names(licences: ModuleType) -> None:
    shipped = licences.shipped()

    assert {"glottis", "fastapi", "chdb-core", "cartesia", "onnxruntime", "asyncpg"} <= set(shipped)
    assert not {"pytest", "ruff", "mypy"} & set(shipped)
