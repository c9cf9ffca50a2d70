"""From a token to a caller: what is accepted, and a corpus of attacks that are not."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from contracts.claims import TYP
from contracts.revocations import Revocation
from contracts.snapshot import Issuer, Principal
from policy.authenticate import authenticate, principal_id_of
from policy.index import index_of
from policy.keyring import KeyRing
from policy.refusal import Refusal
from policy.route import Caller, NeedKeys
from policy.scan import Scan, scan_of
from policy.world import World
from tests.kit.heads import head_of
from tests.kit.identities import (
    IDP,
    NOW,
    b64,
    b64_json,
    idp_token,
    jwks,
    own_token,
    signing_key,
    voice_workspace,
)

FETCHED = "https://idp.test/jwks"


def world_of(**changes: Any) -> World:
    return World(index_of(voice_workspace(**changes)))


def idp_issuer(**changes: Any) -> Issuer:
    fields: dict[str, Any] = {
        "id": "i-idp",
        "workspace": "w1",
        "issuer": IDP,
        "audiences": ("glottis",),
        "jwks": jwks(signing_key()),
    }
    return Issuer(**(fields | changes))


def answer(token: str, world: World | None = None, now: float = NOW) -> Caller | NeedKeys | Refusal:
    scan = scan_of(head_of("GET /cartesia/voices", token=token), {})
    assert isinstance(scan, Scan), scan
    return authenticate(scan, world or world_of(), now)


def reason(token: str, world: World | None = None, now: float = NOW) -> str:
    refusal = answer(token, world, now)
    assert isinstance(refusal, Refusal), refusal
    return refusal.reason


def caller(token: str, world: World | None = None, now: float = NOW) -> Caller:
    found = answer(token, world, now)
    assert isinstance(found, Caller), found
    return found


def test_a_token_of_a_registered_issuer_is_its_principal() -> None:
    found = caller(idp_token())

    assert (found.workspace, found.principal, found.kind, found.name) == ("w1", "u-alice", "user", "Alice")
    assert found.teams == ("voice",)
    assert (found.token_id, found.issued_at, found.expires_at) == ("t1", NOW - 60, NOW + 600)


def test_a_token_of_ours_carries_its_narrowing() -> None:
    found = caller(
        own_token(team="lab", accounts=["a-us"], models=["sonic-turbo"], operations=["tts"], origins=["https://App.test"])
    )

    assert (found.principal, found.kind, found.teams) == ("agent", "service_account", ("lab",))
    assert (found.cost_team, found.accounts, found.models, found.operations) == ("lab", ("a-us",), ("sonic-turbo",), ("tts",))
    assert found.origins == ("https://app.test",)


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_every_allowed_asymmetric_algorithm_is_verified(algorithm: str) -> None:
    key = signing_key(algorithm, "a")
    issuer = idp_issuer(jwks=jwks(key), algorithms=(algorithm,))

    assert caller(idp_token(key), world_of(issuers=(issuer,))).principal == "u-alice"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("nonsense", "token_malformed"),
        ("a.b", "token_malformed"),
        ("a.b.c.d", "token_malformed"),
        ("a.b.c.d.e", "token_malformed"),
        ("....", "token_malformed"),
        ("é", "token_malformed"),
        ("x" * 8193, "token_too_long"),
        (b64_json({"alg": "ES256"}) + "." + b64(b"[]") + "." + b64(b"s"), "token_malformed"),
        (b64(b"\xff") + "." + b64(b"{}") + "." + b64(b"s"), "token_malformed"),
        (b64(b"[" * 5000) + "." + b64(b"{}") + "." + b64(b"s"), "token_malformed"),
    ],
)
def test_what_is_no_signed_token_is_refused(token: str, expected: str) -> None:
    assert reason(token) == expected


def test_no_token_at_all_is_refused() -> None:
    scan = scan_of(head_of("GET /cartesia/voices"), {})
    assert isinstance(scan, Scan)

    assert authenticate(scan, world_of(), NOW) == Refusal("token_missing")


def _unsigned(algorithm: str) -> str:
    claims = {"iss": IDP, "aud": "glottis", "sub": "alice", "exp": NOW + 600}
    return f"{b64_json({'alg': algorithm, 'typ': 'JWT'})}.{b64_json(claims)}.{b64(b'x')}"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "HS256", "ES256K", "RSA1_5", "dir", "", "es256"])
def test_algorithms_outside_the_allow_list_are_refused(algorithm: str) -> None:
    assert reason(_unsigned(algorithm)) == "algorithm_refused"


def test_an_hmac_over_the_public_key_is_refused_even_if_the_issuer_lists_hmac() -> None:
    key = signing_key("RS256")
    signed = (
        f"{b64_json({'alg': 'HS256', 'kid': 'k1'})}.{b64_json({'iss': IDP, 'aud': 'glottis', 'sub': 'alice', 'exp': NOW + 9})}"
    )
    mac = hmac.new(json.dumps(key.jwk).encode(), signed.encode(), hashlib.sha256).digest()
    world = world_of(issuers=(idp_issuer(jwks=jwks(key), algorithms=("RS256", "HS256")),))

    assert reason(f"{signed}.{b64(mac)}", world) == "algorithm_refused"


def test_an_algorithm_that_the_issuer_does_not_use_is_refused() -> None:
    key = signing_key("PS256", "a")
    world = world_of(issuers=(idp_issuer(jwks=jwks(key), algorithms=("RS256",)),))

    assert reason(idp_token(key), world) == "algorithm_refused"


def test_a_key_signs_only_with_the_algorithm_that_its_set_names() -> None:
    key = signing_key("RS256", "a")
    named = json.dumps({"keys": [key.jwk | {"alg": "RS512"}]}).encode()
    world = world_of(issuers=(idp_issuer(jwks=named, algorithms=("RS256", "RS512")),))

    assert reason(idp_token(key), world) == "signature_invalid"


def test_a_key_of_the_wrong_curve_verifies_nothing() -> None:
    key = signing_key("ES384", "k1")
    token = idp_token(key, header={"alg": "ES256"})
    world = world_of(issuers=(idp_issuer(jwks=jwks(key), algorithms=("ES256", "ES384")),))

    assert reason(token, world) == "signature_invalid"


@pytest.mark.parametrize("member", ["jwk", "jku", "x5u", "x5c"])
def test_a_key_that_the_token_brings_along_is_not_looked_at(member: str) -> None:
    attacker = signing_key("ES256", "k1", seed=1)
    brought: dict[str, Any] = {
        "jwk": attacker.jwk,
        "jku": "https://attacker.test/jwks",
        "x5u": "https://attacker.test/cert",
        "x5c": ["MIIB"],
    }

    assert reason(idp_token(attacker, header={member: brought[member]})) == "signature_invalid"


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token[:-2],
        lambda token: token + token.rpartition(".")[2],
        lambda token: token.rpartition(".")[0] + "." + b64(b"\0" * 64),
        lambda token: token.rpartition(".")[0] + "." + b64(b"\xff" * 64),
        lambda token: token.rpartition(".")[0] + "." + b64(b"x"),
    ],
    ids=["truncated", "doubled", "zero", "overflowing", "one byte"],
)
def test_a_signature_that_was_changed_does_not_match(change: Any) -> None:
    assert reason(change(idp_token())) == "signature_invalid"


def test_another_payload_under_a_good_signature_does_not_match() -> None:
    header, _, signature = idp_token().split(".")
    payload = b64_json({"iss": IDP, "aud": "glottis", "sub": "bob", "exp": NOW + 600})

    assert reason(f"{header}.{payload}.{signature}") == "signature_invalid"


def test_a_second_spelling_of_the_same_base64_is_refused() -> None:
    token = idp_token()
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    at = alphabet.index(token[-1])
    other = token[:-1] + alphabet[at ^ 1]  # the last character of 64 bytes carries four bits that mean nothing
    assert base64.urlsafe_b64decode(other.rpartition(".")[2] + "==") == base64.urlsafe_b64decode(token.rpartition(".")[2] + "==")

    assert reason(other) == "token_malformed"


def test_a_rewritten_ecdsa_signature_has_the_same_token_id() -> None:
    token = idp_token(jti=None)
    signature = base64.urlsafe_b64decode(token.rpartition(".")[2] + "==")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    flipped = signature[:32] + (order - int.from_bytes(signature[32:], "big")).to_bytes(32, "big")
    other = token.rpartition(".")[0] + "." + b64(flipped)

    assert other != token
    assert caller(other).token_id == caller(token).token_id


@pytest.mark.parametrize(
    "payload",
    [
        '{"iss":"https://idp.test","aud":"glottis","sub":"bob","sub":"alice","exp":1800000600}',
        '{"iss":"https://idp.test","aud":"glottis","sub":"alice","exp":1,"exp":1800000600}',
        '{"iss":"https://idp.test","aud":"glottis","sub":"alice","exp":1800000600,"realm":{"roles":1,"roles":2}}',
        '{"iss":"https://idp.test","aud":"glottis","sub":"alice","exp":Infinity}',
        '[{"iss":"https://idp.test"}]',
        '"text"',
        "{",
    ],
)
def test_a_payload_that_two_readers_read_differently_is_refused(payload: str) -> None:
    assert reason(signing_key().token(payload)) == "token_malformed"


@pytest.mark.parametrize(
    "header",
    [{"crit": ["exp"], "exp": 1}, {"crit": []}, {"b64": False}, {"kid": 7}, {"kid": ["k1"]}],
)
def test_header_members_that_are_not_understood_are_refused(header: dict[str, Any]) -> None:
    assert reason(idp_token(header=header)) == "token_malformed"


@pytest.mark.parametrize("kid", ["../../etc/passwd", "k1' OR '1'='1", "k2", "", "k1\0", "https://attacker.test/jwks"])
def test_an_unknown_kid_finds_no_key(kid: str) -> None:
    assert reason(idp_token(header={"kid": kid})) == "key_unknown"


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "application/at+jwt", None])
def test_the_types_of_access_tokens_are_accepted_from_an_idp(typ: str | None) -> None:
    assert caller(idp_token(header={"typ": typ})).principal == "u-alice"


@pytest.mark.parametrize("typ", ["logout+jwt", "dpop+jwt", "id+jwt", TYP, 7, ""])
def test_other_types_do_not_open_the_gateway(typ: Any) -> None:
    assert reason(idp_token(header={"typ": typ})) == "token_type_refused"


@pytest.mark.parametrize("typ", ["JWT", "glottis-session+jwt", None, "GLOTTIS+JWT"])
def test_a_token_of_ours_must_be_of_our_type(typ: str | None) -> None:
    assert reason(own_token(header={"typ": typ})) == "token_type_refused"


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.test"},
        {"iss": None},
        {"iss": 7},
        {"iss": ["https://idp.test"]},
        {"aud": "dashboard"},
        {"aud": None},
        {"aud": []},
        {"aud": {"glottis": True}},
        {"aud": ["other", 7]},
    ],
)
def test_another_issuer_and_another_audience_get_the_same_answer(changes: dict[str, Any]) -> None:
    assert reason(idp_token(**changes)) == "issuer_unknown"


def test_one_audience_of_several_is_enough() -> None:
    assert caller(idp_token(aud=["account", "glottis"])).principal == "u-alice"


def test_audiences_that_name_two_workspaces_are_refused() -> None:
    other = idp_issuer(id="i-other", workspace="w2", audiences=("other",))

    assert reason(idp_token(aud=["glottis", "other"]), world_of(plus_issuers=(other,))) == "issuer_unknown"


@pytest.mark.parametrize(
    ("changes", "now", "expected"),
    [
        ({"exp": NOW}, NOW + 29, None),
        ({"exp": NOW}, NOW + 30, "token_expired"),
        ({"exp": NOW - 31}, NOW, "token_expired"),
        ({"nbf": NOW + 30}, NOW, None),
        ({"nbf": NOW + 31}, NOW, "token_not_yet_valid"),
        ({"iat": NOW + 30}, NOW, None),
        ({"iat": NOW + 31}, NOW, "token_not_yet_valid"),
        ({"exp": NOW + 0.5}, NOW + 30, None),
    ],
)
def test_clocks_may_differ_by_the_leeway(changes: dict[str, Any], now: float, expected: str | None) -> None:
    found = answer(idp_token(**changes), now=now)

    assert (found.reason if isinstance(found, Refusal) else None) == expected


@pytest.mark.parametrize(("leeway", "now"), [(3600, NOW + 60), (-5, NOW)])
def test_no_setting_forgives_more_than_a_minute(leeway: int, now: float) -> None:
    world = world_of(issuers=(idp_issuer(leeway_seconds=leeway),))

    assert isinstance(answer(idp_token(exp=NOW), world, now - 1), Caller)
    assert reason(idp_token(exp=NOW), world, now) == "token_expired"


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": None},
        {"exp": "1800000600"},
        {"exp": True},
        {"exp": -1},
        {"exp": 10**30},
        {"nbf": "now"},
        {"iat": []},
        {"iat": -5},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 256},
        {"jti": 7},
        {"jti": ""},
    ],
)
def test_claims_that_are_not_as_they_must_be_are_refused(changes: dict[str, Any]) -> None:
    assert reason(idp_token(**changes)) == "claims_invalid"


@pytest.mark.parametrize(
    "changes",
    [
        {"workspace": "w2"},
        {"workspace": None},
        {"kind": "dashboard"},
        {"kind": "access", "parent": "own0"},
        {"operations": "tts"},
        {"jti": None},
    ],
)
def test_a_token_of_ours_with_other_claims_is_refused(changes: dict[str, Any]) -> None:
    assert reason(own_token(**changes)) == "claims_invalid"


def test_an_access_token_names_its_parent_and_comes_from_its_own_issuer() -> None:
    pods = signing_key("EdDSA", "pods")
    issuer = Issuer(
        id="i-at", workspace="w1", issuer="https://at.test", audiences=("glottis",), kind="access_token", jwks=jwks(pods)
    )
    world = world_of(plus_issuers=(issuer,))

    assert caller(own_token(pods, iss="https://at.test", kind="access", parent="own1"), world).parent_token_id == "own1"
    assert reason(own_token(pods, iss="https://at.test", kind="access"), world) == "claims_invalid"
    assert reason(own_token(pods, iss="https://at.test", kind="personal"), world) == "claims_invalid"


def test_another_issuers_key_does_not_sign_for_this_one() -> None:
    assert reason(idp_token(signing_key("EdDSA", "own"))) == "key_unknown"
    assert reason(own_token(signing_key("EdDSA", "k9"), header={"kid": "own"})) == "signature_invalid"


def test_an_unknown_subject_is_refused_unless_the_issuer_admits_it() -> None:
    admits = idp_issuer(admits_unregistered=True, groups_claim="groups", group_teams={"speech": "voice"}, email_claim="email")
    token = idp_token(sub="carol", groups=["speech", "other"], email="carol@test")

    assert reason(token) == "principal_unknown"
    found = caller(token, world_of(issuers=(admits,)))
    assert (found.principal, found.name, found.teams) == (principal_id_of("i-idp", "carol"), "carol@test", ("voice",))
    assert "." not in found.principal


def test_groups_add_teams_to_a_registered_principal() -> None:
    issuer = idp_issuer(groups_claim="realm_access.roles", group_teams={"speech": "lab", "own": "voice"})
    token = idp_token(realm_access={"roles": ["own", "speech", "nothing", 7]})

    assert caller(token, world_of(issuers=(issuer,))).teams == ("voice", "lab")


def test_a_claim_whose_name_holds_dots_is_found_by_its_whole_name() -> None:
    issuer = idp_issuer(groups_claim="https://idp.test/groups", group_teams={"speech": "lab"})

    assert caller(idp_token(**{"https://idp.test/groups": "speech"}), world_of(issuers=(issuer,))).teams == ("voice", "lab")


def test_another_claim_may_name_the_subject() -> None:
    world = world_of(issuers=(idp_issuer(subject_claim="oid"),))

    assert caller(idp_token(sub="x", oid="bob"), world).principal == "u-bob"


def test_a_disabled_principal_is_refused() -> None:
    disabled = Principal(
        id="u-dora", workspace="w1", kind="user", name="Dora", issuer_id="i-idp", subject="dora", is_disabled=True
    )

    assert reason(idp_token(sub="dora"), world_of(plus_principals=(disabled,))) == "principal_disabled"


def test_a_token_is_verified_once_and_judged_each_time() -> None:
    world = world_of()
    token = idp_token()

    first = caller(token, world)
    assert len(world.keys) == 1
    assert caller(token, world) is first
    assert reason(token, world, NOW + 10_000) == "token_expired"


def test_a_cached_token_is_of_no_use_after_its_key_went() -> None:
    world = world_of(issuers=(idp_issuer(jwks=None, jwks_uri=FETCHED),))
    world.keys.set_keys("i-idp", jwks(signing_key()))
    token = idp_token()
    caller(token, world)

    world.keys.set_keys("i-idp", jwks(signing_key("ES256", "k2")))

    found = answer(token, world)
    assert isinstance(found, NeedKeys)
    assert found.kid == "k1"


def test_a_cached_token_lives_on_when_its_key_is_fetched_again() -> None:
    world = world_of(issuers=(idp_issuer(jwks=None, jwks_uri=FETCHED),))
    world.keys.set_keys("i-idp", jwks(signing_key()))
    first = caller(idp_token(), world)

    world.keys.set_keys("i-idp", jwks(signing_key("ES256", "k2"), signing_key()))

    assert caller(idp_token(), world) == first


def test_a_cached_token_is_verified_anew_when_its_issuer_changed() -> None:
    keys = KeyRing()
    token = idp_token()
    caller(token, World(index_of(voice_workspace()), keys=keys))

    changed = World(index_of(voice_workspace(issuers=(idp_issuer(algorithms=("EdDSA",)),))), keys=keys)
    gone = World(index_of(voice_workspace(issuers=())), keys=keys)

    assert reason(token, changed) == "algorithm_refused"
    assert reason(token, gone) == "issuer_unknown"


def test_a_static_key_set_is_read_anew_when_the_issuer_changes_it() -> None:
    keys = KeyRing()
    token = idp_token()
    caller(token, World(index_of(voice_workspace()), keys=keys))
    rotated = voice_workspace(issuers=(idp_issuer(jwks=jwks(signing_key("ES256", "k2"))),))

    assert reason(token, World(index_of(rotated), keys=keys)) == "key_unknown"


def test_a_principals_teams_are_taken_from_the_snapshot_each_time() -> None:
    keys = KeyRing()
    token = idp_token()
    caller(token, World(index_of(voice_workspace()), keys=keys))
    moved = Principal(id="u-alice", workspace="w1", kind="user", name="Alice", teams=("lab",), issuer_id="i-idp", subject="alice")

    assert caller(token, World(index_of(voice_workspace(principals=(moved,))), keys=keys)).teams == ("lab",)
    assert reason(token, World(index_of(voice_workspace(principals=())), keys=keys)) == "principal_unknown"


@pytest.mark.parametrize("address", [FETCHED, None], ids=["named", "discovered"])
def test_an_unknown_kid_of_a_fetched_set_asks_for_the_keys_once(address: str | None) -> None:
    issuer = idp_issuer(jwks=None, jwks_uri=address)
    world = world_of(issuers=(issuer,))

    assert answer(idp_token(), world) == NeedKeys(issuer, "k1")
    world.keys.set_keys("i-idp", jwks(signing_key()))
    assert caller(idp_token(), world).principal == "u-alice"


@pytest.mark.parametrize("address", [FETCHED, None], ids=["named", "discovered"])
def test_a_known_kid_that_did_not_sign_asks_for_nothing(address: str | None) -> None:
    world = world_of(issuers=(idp_issuer(jwks=None, jwks_uri=address),))
    world.keys.set_keys("i-idp", jwks(signing_key()))

    assert reason(idp_token(signing_key("ES256", "k1", seed=1)), world) == "signature_invalid"


def test_an_unregistered_issuer_never_asks_for_keys() -> None:
    assert reason(idp_token(iss="https://attacker.test")) == "issuer_unknown"


@pytest.mark.parametrize(("kid_in_token", "kid_in_set"), [(None, None), (None, "k1"), ("k1", None)])
def test_key_sets_and_tokens_without_a_kid_are_matched_by_trying(kid_in_token: str | None, kid_in_set: str | None) -> None:
    key = signing_key("ES256", None)
    listed = key.jwk | ({"kid": kid_in_set} if kid_in_set else {})
    document = json.dumps({"keys": [signing_key("ES256", None, seed=1).jwk, listed]}).encode()

    assert caller(idp_token(key, header={"kid": kid_in_token}), world_of(issuers=(idp_issuer(jwks=document),))).name == "Alice"


def test_a_token_without_kid_that_no_key_signed_asks_for_newer_keys() -> None:
    issuer = idp_issuer(jwks=None, jwks_uri=FETCHED)
    world = world_of(issuers=(issuer,))
    world.keys.set_keys("i-idp", jwks(signing_key("ES256", None)))

    assert answer(idp_token(signing_key("ES256", None, seed=1)), world) == NeedKeys(issuer, None)


def test_revocation_is_not_the_tokens_business() -> None:
    world = world_of()
    world.revocations.add(Revocation(workspace="w1", kind="token", target="t1", at_ms=0))

    assert world.revocations.hits(caller(idp_token(), world), NOW) == "token_revoked"
