"""One message on an open socket, and the socket itself judged again."""

from typing import Any

import pytest

from contracts.revocations import Revocation
from contracts.snapshot import Account, Grant, Issuer, Model, Principal, Team
from policy.decide import Admit, Route, decide, judge_message
from policy.facts import Facts
from policy.index import index_of
from policy.refusal import Refusal
from policy.world import World
from tests.kit.heads import head_of
from tests.kit.identities import IDP, NOW, idp_token, jwks, signing_key, voice_workspace

SPEAKS = Facts(model="sonic-3", voice="v1", speaks=True)


def world_of(**changes: Any) -> World:
    return World(index_of(voice_workspace(**changes)))


def opened(world: World, target: str = "/cartesia/tts/websocket", token: str | None = None) -> Route:
    decision = decide(head_of(f"GET {target}", token=token or idp_token(), is_websocket=True), None, world, NOW)
    assert isinstance(decision, Admit), decision
    return decision.route


def reason(route: Route, facts: Facts, world: World, now: float = NOW) -> str | None:
    verdict = judge_message(route, facts, world, now)
    return verdict.reason if isinstance(verdict, Refusal) else None


def test_a_message_that_speaks_gets_its_models_route() -> None:
    world = world_of()
    route = judge_message(opened(world), SPEAKS, world, NOW)

    assert isinstance(route, Route)
    assert (route.account.id, route.model, route.attribution.model) == ("a-eu", "sonic-3", "sonic-3")


def test_a_message_like_the_one_before_gets_the_same_route() -> None:
    world = world_of()
    route = judge_message(opened(world), SPEAKS, world, NOW)
    assert isinstance(route, Route)

    assert judge_message(route, SPEAKS, world, NOW) is route
    assert judge_message(route, Facts(), world, NOW) is route


def test_a_message_of_another_accounts_model_is_routed_there_for_the_session_to_judge() -> None:
    world = world_of()
    route = judge_message(opened(world), Facts(model="kokoro-82m", speaks=True), world, NOW)

    assert isinstance(route, Route)
    assert (route.account.id, route.attribution.account, route.attribution.provider) == ("a-kk", "a-kk", "kokoro")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(model="sonic-turbo", speaks=True), "model_not_granted"),
        (Facts(model="nothing", speaks=True), "model_not_granted"),
        (Facts(speaks=True), "model_missing"),
        (Facts(model="sonic-latest", speaks=False), None),
        (Facts(cancels=True, context_id="c1"), None),
    ],
)
def test_every_message_that_speaks_is_judged_and_a_closing_one_is_not(facts: Facts, expected: str | None) -> None:
    world = world_of()

    assert reason(opened(world), facts, world) == expected


def test_a_message_without_a_model_keeps_its_contexts() -> None:
    world = world_of()
    route = judge_message(opened(world), SPEAKS, world, NOW)
    assert isinstance(route, Route)

    assert reason(route, Facts(speaks=True), world) is None


def test_a_routed_session_stays_at_its_account_while_that_serves_the_model() -> None:
    before = world_of()
    route = judge_message(opened(before), SPEAKS, before, NOW)
    assert isinstance(route, Route)
    preferred = Model(id="m9", workspace="w1", account="a-us", name="sonic-3", type="text-to-speech", priority=1)
    grant = Grant(id="g9", workspace="w1", account="a-us", subject="user:u-alice")
    after = world_of(plus_models=(preferred,), plus_grants=(grant,))

    assert judge_message(route, SPEAKS, after, NOW).account.id == "a-eu"  # type: ignore[union-attr]
    assert judge_message(opened(before), SPEAKS, after, NOW).account.id == "a-us"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("voice", "is_embedded", "expected"),
    [
        ("v1", False, None),
        ("v9", False, "voice_not_allowed"),
        ("v1", True, "voice_not_allowed"),
        (None, False, "voice_not_allowed"),
    ],
)
def test_the_voice_is_judged_with_each_message(voice: str | None, is_embedded: bool, expected: str | None) -> None:
    accounts = tuple(
        Account(id=a.id, workspace=a.workspace, name=a.name, provider=a.provider, origin=a.origin, allowed_voices=("v1",))
        for a in voice_workspace().accounts
    )
    world = world_of(accounts=accounts)

    assert reason(opened(world), Facts("sonic-3", voice, is_embedded, speaks=True), world) == expected


def test_a_teams_list_of_voices_binds_on_an_open_session() -> None:
    before, route = world_of(), opened(world_of())
    listed = world_of(teams=(Team(id="voice", workspace="w1", name="Voice team", allowed_voices=("v1",)),))

    assert reason(route, Facts("sonic-3", "v2", speaks=True), before) is None
    assert reason(route, Facts("sonic-3", "v2", speaks=True), listed) == "voice_not_allowed"
    assert reason(route, Facts("sonic-3", "v1", True, speaks=True), listed) == "voice_not_allowed"
    assert reason(route, Facts("sonic-3", "v1", speaks=True), listed) is None


def test_a_pinned_socket_speaks_the_pinned_accounts_models_alone() -> None:
    world = world_of()
    route = opened(world, "/cartesia/@cartesia-eu/tts/websocket")

    assert reason(route, SPEAKS, world) is None
    assert reason(route, Facts(model="kokoro-82m", speaks=True), world) == "model_not_granted"


@pytest.mark.parametrize("facts", [SPEAKS, Facts()])
def test_a_withdrawn_grant_ends_an_open_session(facts: Facts) -> None:
    before = world_of()
    route = judge_message(opened(before), SPEAKS, before, NOW)
    assert isinstance(route, Route)

    assert reason(route, facts, world_of(grants=())) == "model_not_granted"
    assert reason(opened(before), Facts(), world_of(grants=())) == "account_not_granted"


def test_a_deleted_model_ends_an_open_session() -> None:
    before = world_of()
    route = judge_message(opened(before), SPEAKS, before, NOW)
    assert isinstance(route, Route)

    assert reason(route, Facts(), world_of(models=())) == "model_not_granted"


def test_a_principal_that_left_its_team_loses_the_teams_grants() -> None:
    route = opened(world_of())
    alone = Principal(id="u-alice", workspace="w1", kind="user", name="Alice", issuer_id="i-idp", subject="alice")

    assert reason(route, Facts(), world_of(principals=(alone,))) == "account_not_granted"


def test_a_disabled_or_removed_principal_ends_an_open_session() -> None:
    route = opened(world_of())
    disabled = Principal(
        id="u-alice", workspace="w1", kind="user", name="Alice", issuer_id="i-idp", subject="alice", is_disabled=True
    )

    assert reason(route, Facts(), world_of(principals=(disabled,))) == "principal_disabled"
    assert reason(route, Facts(), world_of(principals=())) == "principal_unknown"
    assert reason(route, Facts(), world_of(issuers=())) == "issuer_unknown"


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        ("token", "t1", "token_revoked"),
        ("principal", "u-alice", "principal_revoked"),
    ],
)
def test_a_revocation_ends_an_open_session(kind: Any, target: str, expected: str) -> None:
    world = world_of()
    route = opened(world)
    world.revocations.add(Revocation(workspace="w1", kind=kind, target=target, at_ms=0))

    assert reason(route, Facts(), world) == expected


@pytest.mark.parametrize(
    ("expiry", "now", "expected"),
    [
        ("finish-session", NOW + 99_999, None),
        ("hard", NOW + 629, None),
        ("hard", NOW + 630, "token_expired"),
        ("grace:100", NOW + 729, None),
        ("grace:100", NOW + 730, "token_expired"),
        ("grace:soon", NOW + 630, "token_expired"),
        ("grace:", NOW + 630, "token_expired"),
        ("someday", NOW + 630, "token_expired"),
    ],
)
def test_expiry_ends_an_open_session_as_its_issuer_says(expiry: str, now: float, expected: str | None) -> None:
    issuer = Issuer(id="i-idp", workspace="w1", issuer=IDP, audiences=("glottis",), jwks=jwks(signing_key()), expiry=expiry)
    world = world_of(issuers=(issuer,))

    assert reason(opened(world), Facts(), world, now) == expected


def test_the_issuers_setting_counts_as_it_is_now() -> None:
    route = opened(world_of())
    strict = Issuer(id="i-idp", workspace="w1", issuer=IDP, audiences=("glottis",), jwks=jwks(signing_key()), expiry="hard")

    assert reason(route, Facts(), world_of(issuers=(strict,)), NOW + 9_999) == "token_expired"


def test_a_speech_to_text_session_is_judged_again_by_its_own_model() -> None:
    world = world_of()
    route = opened(world, "/cartesia/stt/websocket?model=ink-whisper&encoding=pcm_s16le&sample_rate=16000")
    without = tuple(model for model in voice_workspace().models if model.name != "ink-whisper")

    assert judge_message(route, Facts(), world, NOW) is route
    assert reason(route, Facts(), world_of(models=without)) == "model_not_granted"
