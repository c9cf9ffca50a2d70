"""A request in, one of four answers out: accounts, models, operations, voices, origins."""

from typing import Any

import msgspec
import pytest

from contracts.claims import AUDIENCE
from contracts.revocations import Revocation
from contracts.snapshot import Account, Grant, Issuer, Model, Principal, Team, Workspace
from policy.decide import Admit, NeedFacts, decide
from policy.facts import Facts, RequestHead
from policy.index import index_of
from policy.refusal import Refusal
from policy.world import World
from tests.kit.heads import head_of
from tests.kit.identities import NOW, idp_token, jwks, own_token, signing_key, voice_workspace

JSON = "Content-Type: application/json"
FORM = "Content-Type: multipart/form-data; boundary=b"
SONIC = Facts(model="sonic-3", voice="v1", speaks=True, transcript="Hello", characters=5)


def world_of(**changes: Any) -> World:
    return World(index_of(voice_workspace(**changes)))


def tts(path: str = "/cartesia/tts/bytes", token: str | None = None, *headers: str) -> RequestHead:
    return head_of(f"POST {path}", JSON, *headers, token=token or idp_token())


def admitted(head: RequestHead, facts: Facts | None = None, world: World | None = None) -> Admit:
    decision = decide(head, facts, world or world_of(), NOW)
    assert isinstance(decision, Admit), decision
    return decision


def refusal(head: RequestHead, facts: Facts | None = None, world: World | None = None) -> Refusal:
    decision = decide(head, facts, world or world_of(), NOW)
    assert isinstance(decision, Refusal), decision
    return decision


def reason(head: RequestHead, facts: Facts | None = None, world: World | None = None) -> str:
    return refusal(head, facts, world).reason


def test_a_judged_body_is_asked_for_and_then_judged() -> None:
    head = tts()
    need = decide(head, None, world_of(), NOW)

    assert isinstance(need, NeedFacts)
    assert (need.place, need.endpoint.id, need.route) == ("json_body", "tts.bytes", None)
    route = admitted(head, SONIC).route
    assert (route.account.id, route.model, route.target) == ("a-eu", "sonic-3", b"/tts/bytes")


def test_attribution_names_who_and_what_is_counted() -> None:
    to = admitted(tts(), SONIC).route.attribution

    assert (to.workspace, to.principal, to.principal_kind, to.principal_name) == ("w1", "u-alice", "user", "Alice")
    assert (to.team, to.team_name, to.token) == ("voice", "Voice team", "t1")
    assert (to.account, to.account_name, to.provider, to.model) == ("a-eu", "cartesia-eu", "cartesia", "sonic-3")
    assert (to.operation, to.endpoint) == ("tts", "tts.bytes")


def test_a_model_of_our_own_backend_is_reached_under_cartesias_mount() -> None:
    route = admitted(tts(), Facts(model="kokoro-82m")).route

    assert (route.account.id, route.attribution.provider) == ("a-kk", "kokoro")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Content-Type: application/json", None),
        ("Content-Type: Application/JSON ; charset=UTF-8", None),
        ('Content-Type: application/json; charset="utf-8"', None),
        ("X-No-Type: 1", None),
        ("Content-Encoding: identity", None),
        ("Content-Type: application/json; charset=utf-16", "content_type_unsupported"),
        ("Content-Type: application/x-www-form-urlencoded", "content_type_unsupported"),
        ("Content-Type: multipart/form-data; boundary=b", "content_type_unsupported"),
        ("Content-Type: text/plain", "content_type_unsupported"),
        ("Content-Encoding: gzip", "content_encoding_unsupported"),
        ("content-encoding: BR", "content_encoding_unsupported"),
    ],
)
def test_a_judged_json_body_must_be_readable(header: str, expected: str | None) -> None:
    decision = decide(head_of("POST /cartesia/tts/bytes", header, token=idp_token()), None, world_of(), NOW)

    assert (decision.reason if isinstance(decision, Refusal) else None) == expected


def test_two_content_types_are_refused() -> None:
    assert reason(head_of("POST /cartesia/tts/bytes", JSON, FORM, token=idp_token())) == "content_type_unsupported"


def test_a_body_is_not_asked_for_before_the_caller_is_known() -> None:
    assert reason(head_of("POST /cartesia/stt", FORM)) == "token_missing"
    assert reason(tts(token=idp_token(sub="bob"))) == "account_not_granted"
    assert reason(tts(token=own_token(operations=["stt"]))) == "operation_not_granted"


@pytest.mark.parametrize("model", ["sonic-turbo", "no-such-model", "ink-whisper", "SONIC-3", " sonic-3"])
def test_ungranted_unknown_and_unfit_models_get_the_same_answer(model: str) -> None:
    assert refusal(tts(), Facts(model=model)) == Refusal("model_not_granted", model)


def test_a_request_without_a_model_is_refused() -> None:
    assert reason(tts(), Facts()) == "model_missing"


def test_a_model_of_several_accounts_goes_to_the_lowest_priority_then_name() -> None:
    also = Model(id="m9", workspace="w1", account="a-us", name="sonic-3", type="text-to-speech")
    grant = Grant(id="g9", workspace="w1", account="a-us", subject="user:u-alice")
    equal = world_of(plus_models=(also,), plus_grants=(grant,))
    preferred = Model(id="m9", workspace="w1", account="a-us", name="sonic-3", type="text-to-speech", priority=1)
    sooner = world_of(plus_models=(preferred,), plus_grants=(grant,))

    assert admitted(tts(), SONIC, equal).route.account.id == "a-eu"
    assert admitted(tts(), SONIC, sooner).route.account.id == "a-us"
    assert admitted(tts("/cartesia/@cartesia-eu/tts/bytes"), SONIC, sooner).route.account.id == "a-eu"


def test_the_tokens_accounts_pin_as_well() -> None:
    also = Model(id="m9", workspace="w1", account="a-eu", name="sonic-turbo", type="text-to-speech")
    grant = Grant(id="g9", workspace="w1", account="a-eu", subject="service_account:agent")
    world = world_of(plus_models=(also,), plus_grants=(grant,))
    facts = Facts(model="sonic-turbo")

    assert admitted(tts(token=own_token()), facts, world).route.account.id == "a-eu"
    assert admitted(tts(token=own_token(accounts=["a-us"])), facts, world).route.account.id == "a-us"
    assert reason(tts(token=own_token(accounts=[])), facts, world) == "model_not_granted"
    pinned = tts("/cartesia/@cartesia-eu/tts/bytes", own_token(accounts=["a-us"]))
    assert reason(pinned, facts, world) == "account_not_granted"


@pytest.mark.parametrize("pin", ["cartesia-us", "no-such-account"])
def test_ungranted_and_unknown_pins_get_the_same_answer(pin: str) -> None:
    assert refusal(tts(f"/cartesia/@{pin}/tts/bytes"), SONIC) == Refusal("account_not_granted", f"@{pin}")
    assert refusal(tts(f"/cartesia/@{pin}/tts/bytes")) == Refusal("account_not_granted", f"@{pin}")


def test_an_account_of_another_workspace_is_unknown() -> None:
    foreign = Account(id="a-w2", workspace="w2", name="foreign", provider="cartesia", origin="https://w2.test")
    model = Model(id="m-w2", workspace="w2", account="a-w2", name="sonic-w2", type="text-to-speech")
    crossing = Grant(id="g-x", workspace="w1", account="a-w2", subject="user:u-alice")
    world = world_of(plus_accounts=(foreign,), plus_models=(model,), plus_grants=(crossing,))

    assert reason(tts(), Facts(model="sonic-w2"), world) == "model_not_granted"
    assert reason(tts("/cartesia/@foreign/tts/bytes"), SONIC, world) == "account_not_granted"


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (None, None),
        (("team:voice",), None),
        (("user:u-alice", "user:u-bob"), None),
        (("team:lab",), "model_not_granted"),
        (("user:u-bob",), "model_not_granted"),
        (("u-alice", "voice"), "model_not_granted"),
        ((), "model_not_granted"),
    ],
)
def test_a_model_may_be_narrowed(only: tuple[str, ...] | None, expected: str | None) -> None:
    models = (Model(id="m1", workspace="w1", account="a-eu", name="sonic-3", type="text-to-speech", only=only),)
    decision = decide(tts(), SONIC, world_of(models=models), NOW)

    assert (decision.reason if isinstance(decision, Refusal) else None) == expected


def test_narrowing_gives_nothing_to_who_has_no_account() -> None:
    models = (Model(id="m1", workspace="w1", account="a-eu", name="sonic-3", type="text-to-speech", only=("user:u-bob",)),)

    assert reason(tts(token=idp_token(sub="bob")), SONIC, world_of(models=models)) == "model_not_granted"


def test_the_tokens_models_narrow_further() -> None:
    assert reason(tts(token=own_token(models=["other"])), Facts(model="sonic-turbo")) == "model_not_granted"
    assert admitted(tts(token=own_token(models=["sonic-turbo"])), Facts(model="sonic-turbo")).route.model == "sonic-turbo"


LIST_VOICES = "GET /cartesia/voices"
GRANT_US = Grant(id="g9", workspace="w1", account="a-us", subject="user:u-alice")


def test_without_a_model_the_only_account_of_the_mounts_own_provider_is_meant() -> None:
    assert admitted(head_of(LIST_VOICES, token=idp_token())).route.account.id == "a-eu"


def test_without_a_model_and_without_an_account_there_is_nothing_to_go_to() -> None:
    assert reason(head_of(LIST_VOICES, token=idp_token(sub="bob"))) == "account_not_granted"


def test_without_a_model_several_accounts_are_ambiguous_and_the_pins_are_named() -> None:
    found = refusal(head_of(LIST_VOICES, token=idp_token()), None, world_of(plus_grants=(GRANT_US,)))

    assert found == Refusal("account_ambiguous", "/cartesia/@cartesia-eu/, /cartesia/@cartesia-us/")


@pytest.mark.parametrize(
    ("workspace", "team", "account"),
    [
        ({"cartesia": "a-us"}, {}, "a-us"),
        ({"cartesia": "a-us"}, {"cartesia": "a-eu"}, "a-eu"),
        ({"cartesia": "a-kk"}, {}, "a-kk"),
        ({"cartesia": "a-us"}, {"cartesia": "a-gone"}, "a-us"),
        ({"kokoro": "a-us"}, {"kokoro": "a-eu"}, None),
    ],
)
def test_a_team_and_then_the_workspace_may_set_a_default(
    workspace: dict[str, str], team: dict[str, str], account: str | None
) -> None:
    world = world_of(
        workspaces=(Workspace(id="w1", name="Voice", default_accounts=workspace),),
        teams=(Team(id="voice", workspace="w1", name="Voice team", default_accounts=team),),
        plus_grants=(GRANT_US,),
    )
    decision = decide(head_of(LIST_VOICES, token=idp_token()), None, world, NOW)

    assert (decision.route.account.id if isinstance(decision, Admit) else None) == account


def test_a_pin_settles_what_would_be_ambiguous() -> None:
    world = world_of(plus_grants=(GRANT_US,))

    assert admitted(head_of("GET /cartesia/@cartesia-us/voices", token=idp_token()), None, world).route.account.id == "a-us"


def test_a_disabled_account_is_no_account() -> None:
    accounts = tuple(
        Account(id=a.id, workspace=a.workspace, name=a.name, provider=a.provider, origin=a.origin, is_disabled=a.id == "a-eu")
        for a in voice_workspace().accounts
    )

    assert reason(tts(), SONIC, world_of(accounts=accounts)) == "model_not_granted"


def test_the_kokoro_mount_reaches_kokoro_accounts_alone() -> None:
    assert admitted(head_of("GET /kokoro/voices", token=idp_token())).route.account.id == "a-kk"
    assert reason(tts("/kokoro/tts/bytes"), SONIC) == "model_not_granted"


ROWS = [
    ("GET /cartesia/voices", "voices.read"),
    ("GET /cartesia/", "voices.read"),
    ("PATCH /cartesia/voices/v1", "voices.write"),
    ("DELETE /cartesia/voices/v1", "voices.write"),
    ("POST /cartesia/voices/clone", "voices.clone"),
    ("GET /cartesia/datasets/", "datasets"),
    ("GET /cartesia/fine-tunes/", "fine_tune"),
    ("GET /cartesia/agents", "agents"),
    ("DELETE /cartesia/agents/a1", "agents"),
    ("GET /cartesia/usage/credits", "account"),
    ("GET /cartesia/api-keys", "account"),
    ("POST /cartesia/links", "unlisted"),
]


@pytest.mark.parametrize(("request_line", "operation"), ROWS)
def test_a_collaborator_may_do_what_its_role_says(request_line: str, operation: str) -> None:
    decision = decide(head_of(request_line, token=idp_token()), None, world_of(), NOW)

    assert isinstance(decision, Admit) == (operation in ("tts", "stt", "voices.read"))


@pytest.mark.parametrize(("request_line", "operation"), ROWS)
def test_a_manager_may_do_all_that_the_profile_lists_but_administer_the_account(request_line: str, operation: str) -> None:
    manager = Grant(id="g9", workspace="w1", account="a-eu", subject="user:u-alice", role="manager")
    decision = decide(head_of(request_line, token=idp_token()), None, world_of(plus_grants=(manager,)), NOW)

    assert isinstance(decision, Admit) == (operation not in ("account", "unlisted"))


@pytest.mark.parametrize(("request_line", "operation"), ROWS)
def test_an_operation_may_be_granted_by_name(request_line: str, operation: str) -> None:
    named = Grant(id="g9", workspace="w1", account="a-eu", subject="team:voice", operations=(operation,))

    assert admitted(head_of(request_line, token=idp_token()), None, world_of(plus_grants=(named,))).route.account.id == "a-eu"


@pytest.mark.parametrize(("request_line", "operation"), ROWS)
def test_a_token_may_be_narrowed_to_operations(request_line: str, operation: str) -> None:
    everything = tuple(
        Grant(id=f"g-{name}", workspace="w1", account="a-us", subject="service_account:agent", operations=(name,))
        for name in ("voices.write", "voices.clone", "datasets", "fine_tune", "agents", "account", "unlisted")
    )
    world = world_of(plus_grants=everything)
    others = [name for _, name in ROWS if name != operation]

    assert admitted(head_of(request_line, token=own_token(operations=[operation])), None, world).route.account.id == "a-us"
    assert refusal(head_of(request_line, token=own_token(operations=others)), None, world) == Refusal(
        "operation_not_granted", operation
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(model="sonic-3", voice="v1", speaks=True), None),
        (Facts(model="sonic-3", voice="v9", speaks=True), "voice_not_allowed"),
        (Facts(model="sonic-3", voice="V1", speaks=True), "voice_not_allowed"),
        (Facts(model="sonic-3", voice=None, speaks=True), "voice_not_allowed"),
        (Facts(model="sonic-3", voice="v1", is_voice_embedded=True, speaks=True), "voice_not_allowed"),
    ],
)
def test_an_account_may_approve_voices(facts: Facts, expected: str | None) -> None:
    decision = decide(tts(), facts, with_voices("v1", "v2"), NOW)

    assert (decision.reason if isinstance(decision, Refusal) else None) == expected


def with_voices(*voices: str) -> World:
    accounts = tuple(
        Account(
            id=a.id,
            workspace=a.workspace,
            name=a.name,
            provider=a.provider,
            origin=a.origin,
            allowed_voices=voices if a.id == "a-eu" else None,
        )
        for a in voice_workspace().accounts
    )
    return world_of(accounts=accounts)


def with_team_lists(*teams: Team, **changes: Any) -> World:
    return world_of(teams=teams, **changes)


OWN_GRANT = Grant(id="g9", workspace="w1", account="a-eu", subject="user:u-alice")
LAB_GRANT = Grant(id="g9", workspace="w1", account="a-eu", subject="team:lab")
IN_BOTH = Principal(
    id="u-alice", workspace="w1", kind="user", name="Alice", teams=("voice", "lab"), issuer_id="i-idp", subject="alice"
)
VOICE = Team(id="voice", workspace="w1", name="Voice team", allowed_voices=("v1",))
LAB = Team(id="lab", workspace="w1", name="Lab", allowed_voices=("v2",))


@pytest.mark.parametrize(
    ("world", "voice", "expected"),
    [
        (with_team_lists(VOICE), "v1", None),
        (with_team_lists(VOICE), "v2", "voice_not_allowed"),
        (with_team_lists(VOICE), None, "voice_not_allowed"),
        (with_team_lists(Team(id="voice", workspace="w1", name="V", allowed_voices=())), "v1", "voice_not_allowed"),
        # Lists add up over the grants that admit a principal, and one without a list opens every voice.
        (with_team_lists(VOICE, LAB, plus_grants=(LAB_GRANT,), principals=(IN_BOTH,)), "v2", None),
        (with_team_lists(VOICE, LAB, plus_grants=(LAB_GRANT,), principals=(IN_BOTH,)), "v3", "voice_not_allowed"),
        (with_team_lists(VOICE, LAB, principals=(IN_BOTH,)), "v2", "voice_not_allowed"),
        (with_team_lists(VOICE, plus_grants=(OWN_GRANT,)), "v9", None),
        (with_team_lists(VOICE, plus_grants=(LAB_GRANT,), principals=(IN_BOTH,)), "v9", None),
    ],
)
def test_a_team_may_approve_voices_for_its_grants(world: World, voice: str | None, expected: str | None) -> None:
    decision = decide(tts(), Facts(model="sonic-3", voice=voice, speaks=True), world, NOW)

    assert (decision.reason if isinstance(decision, Refusal) else None) == expected


def test_the_lists_of_account_and_team_bind_both() -> None:
    accounts = tuple(msgspec.structs.replace(a, allowed_voices=("v1", "v2")) for a in voice_workspace().accounts)
    world = with_team_lists(Team(id="voice", workspace="w1", name="V", allowed_voices=("v2", "v3")), accounts=accounts)

    admitted_voices = [
        voice
        for voice in ("v1", "v2", "v3")
        if isinstance(decide(tts(), Facts(model="sonic-3", voice=voice, speaks=True), world, NOW), Admit)
    ]
    assert admitted_voices == ["v2"]


def test_an_embedding_is_outside_a_teams_list() -> None:
    said = Facts(model="sonic-3", voice="v1", is_voice_embedded=True, speaks=True)

    assert reason(tts(), said, with_team_lists(VOICE)) == "voice_not_allowed"


def test_saving_audio_must_be_granted() -> None:
    saving = Facts(model="sonic-3", speaks=True, saves_audio=True)
    granted = Grant(id="g9", workspace="w1", account="a-eu", subject="user:u-alice", operations=("voices.write",))

    assert reason(tts(), saving) == "save_not_granted"
    assert admitted(tts(), saving, world_of(plus_grants=(granted,))).route.model == "sonic-3"


def form(path: str = "/cartesia/stt", token: str | None = None, content_type: str = FORM) -> RequestHead:
    return head_of(f"POST {path}", content_type, token=token or idp_token())


def test_a_form_is_streamed_to_the_only_account_that_its_model_can_lead_to() -> None:
    need = decide(form(), None, world_of(), NOW)

    assert isinstance(need, NeedFacts)
    assert need.place == "form_field"
    assert need.route is not None
    assert need.route.account.id == "a-eu"
    assert admitted(form(), Facts(model="ink-whisper")).route.account.id == "a-eu"


def test_a_form_whose_model_decides_between_accounts_has_no_route_yet() -> None:
    also = Model(id="m9", workspace="w1", account="a-us", name="ink-2", type="speech-to-text")
    need = decide(form(), None, world_of(plus_models=(also,), plus_grants=(GRANT_US,)), NOW)
    pinned = decide(form("/cartesia/@cartesia-us/stt"), None, world_of(plus_models=(also,), plus_grants=(GRANT_US,)), NOW)

    assert isinstance(need, NeedFacts)
    assert (need.route, need.pins) == (None, "/cartesia/@cartesia-eu/, /cartesia/@cartesia-us/")
    assert isinstance(pinned, NeedFacts)
    assert pinned.route is not None
    assert pinned.route.account.id == "a-us"


def test_a_form_that_no_model_could_satisfy_is_not_read() -> None:
    assert reason(form(token=own_token())) == "model_not_granted"


@pytest.mark.parametrize(
    "content_type",
    [
        "Content-Type: application/json",
        "Content-Type: multipart/form-data",
        "X-No-Type: 1",
        "Content-Type: multipart/mixed; boundary=b",
    ],
)
def test_a_form_must_be_a_form(content_type: str) -> None:
    assert reason(form(content_type=content_type)) == "content_type_unsupported"


def test_the_voice_changer_is_read_only_where_voices_are_approved() -> None:
    head = form("/cartesia/voice-changer/bytes")

    assert admitted(head).route.account.id == "a-eu"
    need = decide(head, None, with_voices("v1"), NOW)
    assert isinstance(need, NeedFacts)
    assert need.route is not None
    assert reason(head, Facts(voice="v9"), with_voices("v1")) == "voice_not_allowed"
    assert admitted(head, Facts(voice="v1"), with_voices("v1")).route.account.id == "a-eu"


def stt_socket(query: str, path: str = "/cartesia/stt/websocket") -> RequestHead:
    return head_of(f"GET {path}?{query}", token=idp_token(), is_websocket=True)


def test_a_speech_to_text_socket_is_judged_by_its_query() -> None:
    decision = admitted(stt_socket("model=ink-whisper&encoding=pcm_s16le&sample_rate=16000"))

    assert (decision.route.account.id, decision.route.model) == ("a-eu", "ink-whisper")
    assert (decision.facts.encoding, decision.facts.sample_rate) == ("pcm_s16le", 16000)
    assert reason(stt_socket("model=sonic-3")) == "model_not_granted"
    assert reason(stt_socket("encoding=pcm_s16le")) == "model_missing"


def test_a_text_to_speech_socket_opens_at_the_default_account_whatever_its_models() -> None:
    decision = admitted(head_of("GET /cartesia/tts/websocket", token=idp_token(), is_websocket=True))

    assert (decision.route.account.id, decision.route.model) == ("a-eu", "")


def test_the_sagemaker_routes_mean_the_accounts_only_model_or_the_one_in_the_header() -> None:
    header = "X-Amzn-SageMaker-Model-Invocation-Path: kokoro-82m-v2"
    second = Model(id="m9", workspace="w1", account="a-kk", name="kokoro-82m-v2", type="text-to-speech")
    two = world_of(plus_models=(second,))

    assert admitted(tts("/kokoro/invocations"), Facts(speaks=True)).route.model == "kokoro-82m"
    assert reason(tts("/kokoro/invocations"), Facts(speaks=True), two) == "model_missing"
    assert admitted(tts("/kokoro/invocations", None, header), Facts(speaks=True), two).route.model == "kokoro-82m-v2"
    assert reason(tts("/kokoro/invocations", None, header), Facts(speaks=True)) == "model_not_granted"


def test_a_model_that_two_headers_name_is_refused() -> None:
    header = "X-Amzn-SageMaker-Model-Invocation-Path: kokoro-82m"

    assert reason(tts("/kokoro/invocations", None, header, header)) == "judged_parameter_twice"


def test_the_sagemaker_socket_knows_its_model_at_the_handshake() -> None:
    head = head_of("GET /kokoro/invocations-bidirectional-stream", token=idp_token(), is_websocket=True)

    assert admitted(head).route.model == "kokoro-82m"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (("Origin: https://app.test",), None),
        (("Origin: HTTPS://App.test",), None),
        (("Origin: https://evil.test",), "origin_not_allowed"),
        (("Origin: https://app.test.evil.test",), "origin_not_allowed"),
        (("Origin: null",), "origin_not_allowed"),
        (("Origin: https://app.test", "Origin: https://evil.test"), "origin_not_allowed"),
        ((), "origin_not_allowed"),
    ],
)
def test_a_browser_token_is_bound_to_its_origins(headers: tuple[str, ...], expected: str | None) -> None:
    token = own_token(origins=["https://app.test"], kind="browser")
    decision = decide(head_of("GET /cartesia/voices", *headers, token=token), None, world_of(), NOW)

    assert (decision.reason if isinstance(decision, Refusal) else None) == expected


def test_a_token_without_origins_is_accepted_from_any_page() -> None:
    assert admitted(head_of("GET /cartesia/voices", "Origin: https://app.test", token=idp_token())).route.account.id == "a-eu"


def test_access_tokens_are_answered_here_and_cannot_mint() -> None:
    pods = signing_key("EdDSA", "pods")
    issuer = Issuer(
        id="i-at", workspace="w1", issuer="https://at.test", audiences=(AUDIENCE,), kind="access_token", jwks=jwks(pods)
    )
    world = world_of(plus_issuers=(issuer,))
    mint = "POST /cartesia/access-token"

    assert admitted(head_of(mint, token=own_token(operations=["stt"])), None, world).route.endpoint.is_answered_here
    child = own_token(pods, iss="https://at.test", kind="access", parent="own1")
    assert reason(head_of(mint, token=child), None, world) == "cannot_mint"


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        ("token", "t1", "token_revoked"),
        ("principal", "u-alice", "principal_revoked"),
        ("token", "t2", None),
    ],
)
def test_a_revocation_refuses_the_next_request(kind: Any, target: str, expected: str | None) -> None:
    world = world_of()
    world.revocations.add(Revocation(workspace="w1", kind=kind, target=target, at_ms=0))
    decision = decide(tts(), SONIC, world, NOW)

    assert (decision.reason if isinstance(decision, Refusal) else None) == expected


def test_a_tokens_own_metadata_is_added_and_cannot_be_changed_by_a_header() -> None:
    key = idp_token(glottis_metadata={"project": "p7", "agent": "a1"})
    told = 'X-Glottis-Metadata: {"call": "17", "project": "p8"}'
    alone = admitted(tts(token=key), SONIC).route
    both = admitted(tts("/cartesia/tts/bytes", key, told), SONIC).route

    assert alone.metadata == (("project", "p7"), ("agent", "a1"))
    assert dict(both.metadata) == {"call": "17", "project": "p7", "agent": "a1"}


@pytest.mark.parametrize("metadata", ["text", ["a"], {"a": 1}, {"": "x"}, {"a": "x" * 129}, {str(n): "" for n in range(33)}])
def test_a_token_whose_metadata_is_not_as_it_must_be_is_refused(metadata: object) -> None:
    assert reason(tts(token=idp_token(glottis_metadata=metadata))) == "claims_invalid"


def test_metadata_and_subprotocol_travel_with_the_route() -> None:
    route = admitted(
        head_of(
            "GET /cartesia/tts/websocket",
            f"Sec-WebSocket-Protocol: glottis.v1, glottis.auth.{idp_token()}",
            'X-Glottis-Metadata: {"agent": "a1"}',
            is_websocket=True,
        )
    ).route

    assert route.subprotocol == b"glottis.v1"
    assert route.metadata == (("agent", "a1"),)


@pytest.mark.parametrize(
    ("team", "grants", "cost"),
    [
        ("lab", (), "lab"),
        ("voice", (), "lab"),
        (None, (), "lab"),
        (None, (Grant(id="g9", workspace="w1", account="a-us", subject="team:second"),), "second"),
    ],
)
def test_the_cost_goes_to_the_tokens_team_else_the_granting_else_the_first(
    team: str | None, grants: tuple[Grant, ...], cost: str
) -> None:
    principals = tuple(
        p if p.id != "agent" else type(p)(id="agent", workspace="w1", kind=p.kind, name=p.name, teams=("lab", "second"))
        for p in voice_workspace().principals
    )
    world = world_of(principals=principals, plus_grants=grants)

    assert admitted(tts(token=own_token(team=team)), Facts(model="sonic-turbo"), world).route.attribution.team == cost
