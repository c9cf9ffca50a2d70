"""The API's description by itself: an example of everything that is taken and given, each true to its schema; links."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from control_plane.app import create_app
from control_plane.settings import Settings
from tests.kit.control_plane import environment_of
from tests.kit.services import NatsAccount, PostgresDatabase, nats_seeds

Document = dict[str, Any]  # Any: OpenAPI's own shape


@pytest.fixture
def document(tmp_path: Path) -> Document:
    """The description of an application that has no database and no bus."""
    database = PostgresDatabase("none", "postgresql://nobody@127.0.0.1/none", "", "")
    environ, _ = environment_of(tmp_path, database, NatsAccount("NONE", "nats://127.0.0.1:1", nats_seeds()), 1)
    return create_app(Settings.from_env(environ)).openapi()


def operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def contents(document: Document) -> Iterator[tuple[str, Document]]:
    """Yield everything that an operation takes or gives, by where it stands."""
    for name, operation in operations(document):
        for media_type, media in operation.get("requestBody", {}).get("content", {}).items():
            yield f"{name} takes {media_type}", media
        for status, response in operation["responses"].items():
            for media_type, media in response.get("content", {}).items():
                yield f"{name} gives {status} {media_type}", media


def test_everything_that_is_taken_or_given_has_an_example(document: Document) -> None:
    found = list(contents(document))
    assert len(found) > 400
    assert [where for where, media in found if media.get("example") is None] == []


def test_every_example_is_true_to_its_schema(document: Document) -> None:
    wrong = []
    for where, media in contents(document):
        validator = jsonschema_rs.Draft202012Validator({**media["schema"], "components": document["components"]})
        wrong += [f"{where}: {error.message}" for error in validator.iter_errors(media["example"])]
    assert wrong == []


def test_an_example_of_a_refusal_names_a_reason_of_its_status(document: Document) -> None:
    answers = document["paths"]["/api/v1/teams/{team}"]["patch"]["responses"]
    refusals = {status: answer["content"]["application/problem+json"] for status, answer in answers.items() if status >= "400"}
    reasons = {status: refusal["example"]["reason"] for status, refusal in refusals.items()}
    assert (reasons["404"], reasons["412"], reasons["428"]) == ("not_found", "changed_meanwhile", "precondition_required")


def test_every_operation_says_what_it_does(document: Document) -> None:
    silent = [name for name, what in operations(document) if not what.get("summary") or not what.get("description")]
    assert silent == []


def test_what_is_made_is_linked_to_what_can_be_done_with_it(document: Document) -> None:
    links = document["paths"]["/api/v1/accounts/{account}/models"]["post"]["responses"]["201"]["links"]
    methods = document["paths"]["/api/v1/accounts/{account}/models/{model}"]
    assert set(links) == {methods[method]["operationId"] for method in ("get", "patch", "delete")}
    assert links[methods["get"]["operationId"]]["parameters"] == {
        "account": "$request.path.account",
        "model": "$response.body#/id",
    }
