"""A head that is decided again gets what it would get the first time, whatever changed meanwhile."""

from dataclasses import replace

from contracts.revocations import Revocation
from contracts.snapshot import Grant, Issuer
from policy.decide import Admit, Decision, NeedFacts, NeedKeys
from policy.facts import Facts
from policy.index import index_of
from policy.providers import cartesia
from policy.refusal import Refusal
from policy.repeated import Repeated
from policy.world import World
from tests.kit.heads import head_of
from tests.kit.identities import IDP, NOW, idp_token, jwks, signing_key, voice_workspace

SONIC = Facts(model="sonic-3", voice="v1", characters=5, speaks=True)


def speaking(**claims: object) -> Repeated:
    return Repeated(head_of("POST /cartesia/tts/bytes", "Content-Type: application/json", token=idp_token(**claims)))


def world() -> World:
    return World(index_of(voice_workspace()))


def reason(decision: Decision) -> str:
    assert isinstance(decision, Refusal), decision
    return decision.reason


def admitted(repeated: Repeated, world: World, facts: Facts = SONIC, now: float = NOW) -> Admit:
    need = repeated.decide(None, world, now)
    assert isinstance(need, NeedFacts)
    decision = repeated.decide(facts, world, now)
    assert isinstance(decision, Admit), decision
    return decision


def test_the_second_decision_gives_the_same_route_with_the_new_facts() -> None:
    repeated, same = speaking(), world()
    first = admitted(repeated, same)

    second = admitted(repeated, same, replace(SONIC, characters=9))

    assert second.route is first.route
    assert second.facts.characters == 9


def test_each_body_is_read_for_itself() -> None:
    repeated = speaking()
    bodies = [
        b'{"model_id":"sonic-3","transcript":"One","voice":{"mode":"id","id":"v1"}}',
        b'{"model_id":"sonic-3","transcript":"Two!","voice":{"mode":"id","id":"v1"}}',
        b'{"model_id":"sonic-3","transcript":"Three","voice":{"mode":"id","id":"v1"}}',
        b'{"model_id":"sonic-3","transcript":"Three","voice":{"mode":"id","id":"v2"}}',
        b'{"model_id":"sonic-3","transcript":"A<break time=\'1s\'/>","voice":{"mode":"id","id":"v2"}}',
    ]

    read = [repeated.facts(body, cartesia.TTS_BYTES) for body in bodies]

    assert [(facts.voice, facts.transcript, facts.characters) for facts in read if isinstance(facts, Facts)] == [
        ("v1", "One", 3),
        ("v1", "Two!", 4),
        ("v1", "Three", 5),
        ("v2", "Three", 5),
        ("v2", "A<break time='1s'/>", 2),
    ]


def test_another_model_is_judged_for_itself() -> None:
    repeated, same = speaking(), world()
    admitted(repeated, same)

    assert reason(repeated.decide(replace(SONIC, model="sonic-turbo"), same, NOW)) == "model_not_granted"


def test_saving_audio_is_judged_for_itself() -> None:
    repeated, same = speaking(), world()
    admitted(repeated, same)

    assert reason(repeated.decide(replace(SONIC, saves_audio=True), same, NOW)) == "save_not_granted"


def test_a_revocation_binds_at_once_and_its_end_too() -> None:
    repeated, same = speaking(), world()
    admitted(repeated, same)

    same.revocations.add(Revocation(workspace="w1", kind="token", target="t1", at_ms=0))
    assert reason(repeated.decide(None, same, NOW)) == "token_revoked"
    assert reason(repeated.decide(SONIC, same, NOW)) == "token_revoked"
    same.revocations.remove("w1", "token", "t1")
    admitted(repeated, same)


def test_an_expired_token_is_refused() -> None:
    repeated, same = speaking(exp=NOW + 10), world()
    admitted(repeated, same)

    assert reason(repeated.decide(None, same, NOW + 41)) == "token_expired"
    assert reason(repeated.decide(SONIC, same, NOW + 41)) == "token_expired"


def test_a_clock_that_was_set_back_is_asked_anew() -> None:
    repeated, same = speaking(nbf=NOW - 60), world()
    admitted(repeated, same)

    assert reason(repeated.decide(SONIC, same, NOW - 600)) == "token_not_yet_valid"


def test_a_key_that_its_issuer_withdrew_is_asked_for_anew() -> None:
    fetched = Issuer(id="i-idp", workspace="w1", issuer=IDP, audiences=("glottis",), jwks_uri="https://idp.test/jwks")
    repeated, same = speaking(), World(index_of(voice_workspace(issuers=(fetched,))))
    same.keys.set_keys("i-idp", jwks(signing_key()))
    admitted(repeated, same)

    same.keys.set_keys("i-idp", jwks(signing_key(kid="k2")))

    assert isinstance(repeated.decide(SONIC, same, NOW), NeedKeys)


def test_a_new_configuration_is_asked_anew() -> None:
    repeated, before = speaking(), world()
    admitted(repeated, before)
    grants = tuple(grant for grant in voice_workspace().grants if grant.account != "a-eu")

    after = replace(before, index=index_of(voice_workspace(grants=grants)))

    assert isinstance(repeated.decide(SONIC, after, NOW), Refusal)
    more = (Grant(id="g9", workspace="w1", account="a-us", subject="user:u-alice"),)
    wider = replace(before, index=index_of(voice_workspace(plus_grants=more)))
    assert admitted(repeated, wider, replace(SONIC, model="sonic-turbo")).route.account.id == "a-us"


def test_a_refusal_is_never_kept() -> None:
    repeated, same = speaking(), world()
    same.revocations.add(Revocation(workspace="w1", kind="token", target="t1", at_ms=0, expires_ms=int(NOW * 1000) + 1000))
    assert reason(repeated.decide(None, same, NOW)) == "token_revoked"

    admitted(repeated, same, now=NOW + 2)


def test_a_head_without_a_token_is_refused_each_time() -> None:
    repeated = Repeated(head_of("POST /cartesia/tts/bytes", "Content-Type: application/json"))

    assert [reason(repeated.decide(None, world(), NOW)) for _ in range(2)] == ["token_missing", "token_missing"]
