"""Why: the verdict of the data plane, and the rules that took part."""

from typing import Any

import pytest

from contracts.snapshot import Account, Grant, Model, Principal, Team
from policy.explain import Explanation, Question, Unanswerable, explain
from policy.index import index_of
from policy.world import World
from tests.kit.identities import NOW, voice_workspace


def answer(question: Question, **changes: Any) -> Explanation:
    return explain(question, World(index_of(voice_workspace(**changes))), NOW)


def asked(**changes: Any) -> Question:
    fields: dict[str, Any] = {"workspace": "w1", "subject": "user:u-alice", "model": "sonic-3"}
    return Question(**(fields | changes))


def texts(explanation: Explanation) -> list[tuple[str, str, str]]:
    return [(finding.rule, finding.effect, finding.text) for finding in explanation.findings]


def test_an_admitted_message_names_every_rule() -> None:
    found = answer(asked(voice="v1"))

    assert (found.is_admitted, found.reason, found.account, found.model, found.team) == (
        True,
        "admitted",
        "cartesia-eu",
        "sonic-3",
        "voice",
    )
    assert texts(found) == [
        ("principal", "allows", "Alice is a user; teams: Voice team."),
        ("grant", "allows", "team:Voice team is a user of account cartesia-eu: stt, tts, voices.read."),
        ("grant", "allows", "team:Voice team is a user of account kokoro: stt, tts, voices.read."),
        ("account", "allows", "Account cartesia-eu is granted, priority 100."),
        ("account", "refuses", "Account cartesia-us is not granted."),
        ("account", "allows", "Account kokoro is granted, priority 100."),
        ("model", "allows", "Model sonic-3 of account cartesia-eu may be used: inherited from the account."),
        (
            "choice",
            "allows",
            "Account cartesia-eu: of the granted accounts that register sonic-3 it comes first by priority, then by name.",
        ),
        ("operation", "allows", "Operation tts is granted there."),
        ("voice", "allows", "At account cartesia-eu any voice is approved."),
    ]


def test_a_narrowed_model_says_to_whom() -> None:
    models = (Model(id="m1", workspace="w1", account="a-eu", name="sonic-3", type="text-to-speech", only=("team:lab",)),)
    found = answer(asked(), models=models)

    assert (found.is_admitted, found.reason) == (False, "model_not_granted")
    assert ("model", "refuses", "Model sonic-3 of account cartesia-eu is narrowed to team:Lab.") in texts(found)


def test_an_operation_that_is_not_granted_is_named() -> None:
    found = answer(asked(endpoint="voices.clone", model=None))

    assert found.reason == "operation_not_granted"
    assert texts(found)[-1] == ("operation", "refuses", "This operation is not granted to you: voices.clone.")


def test_a_voice_that_is_not_approved_is_named() -> None:
    accounts = tuple(
        Account(id=a.id, workspace=a.workspace, name=a.name, provider=a.provider, origin=a.origin, allowed_voices=("v1",))
        for a in voice_workspace().accounts
    )

    assert answer(asked(voice="v9"), accounts=accounts).reason == "voice_not_allowed"
    assert answer(asked(voice="v1"), accounts=accounts).is_admitted
    assert answer(asked(voice="v9", endpoint="tts.bytes"), accounts=accounts).reason == "voice_not_allowed"


def test_a_teams_list_of_voices_is_named() -> None:
    teams = (Team(id="voice", workspace="w1", name="Voice team", allowed_voices=("v1", "v2")),)

    refused = answer(asked(voice="v9"), teams=teams)
    allowed = answer(asked(voice="v1"), teams=teams)

    assert refused.reason == "voice_not_allowed"
    assert ("voice", "does not apply", "At account cartesia-eu the teams' lists open v1, v2.") in texts(refused)
    assert texts(allowed)[-1] == ("voice", "allows", "At account cartesia-eu v1 is approved.")


def test_an_ambiguous_account_names_the_pins_and_a_pin_settles_it() -> None:
    grants = (Grant(id="g9", workspace="w1", account="a-us", subject="user:u-alice"),)
    question = asked(endpoint="voices.list", model=None)

    assert answer(question, plus_grants=grants).reason == "account_ambiguous"
    pinned = answer(asked(endpoint="voices.list", model=None, pin="cartesia-us"), plus_grants=grants)
    assert pinned.account == "cartesia-us"
    assert ("choice", "allows", "Account cartesia-us: the path pins it.") in texts(pinned)


def test_a_disabled_principal_is_told_at_once() -> None:
    disabled = Principal(id="u-dora", workspace="w1", kind="user", name="Dora", is_disabled=True)
    found = answer(asked(subject="user:u-dora"), plus_principals=(disabled,))

    assert (found.is_admitted, found.reason, texts(found)) == (
        False,
        "principal_disabled",
        [("principal", "refuses", "Dora is disabled.")],
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": "user:nobody"},
        {"subject": "service_account:u-alice"},
        {"subject": "team:voice"},
        {"workspace": "w2"},
        {"endpoint": "tts.smoke"},
        {"profile": "other"},
    ],
)
def test_a_question_about_nothing_is_no_question(changes: dict[str, Any]) -> None:
    with pytest.raises(Unanswerable, match=r"There is no|has no endpoint"):
        answer(asked(**changes))


@pytest.mark.parametrize("endpoint", ["tts.bytes", "stt.batch", "stt.websocket", "voices.get", "agents.other", "access_token"])
def test_every_kind_of_endpoint_can_be_explained(endpoint: str) -> None:
    model = {"stt.batch": "ink-whisper", "stt.websocket": "ink-whisper", "tts.bytes": "sonic-3"}.get(endpoint)

    assert answer(asked(endpoint=endpoint, model=model)).is_admitted == (endpoint != "agents.other")
