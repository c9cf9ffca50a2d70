"""What holds for every request, message and form, whatever its bytes are."""

import base64
import json
from itertools import pairwise
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from contracts.secret import Secret
from contracts.snapshot import Grant, Model, Principal, Snapshot, Team, Workspace
from policy.decide import Admit, NeedFacts, NeedKeys, Route, decide, judge_message
from policy.facts import Facts, RequestHead, Unjudgeable
from policy.form import FormReader
from policy.index import index_of
from policy.peek import facts_of_json
from policy.providers import cartesia
from policy.providers.profile import OPERATIONS
from policy.providers.registry import PROFILES
from policy.refusal import TABLE, Refusal, http_answer, in_band_error
from policy.rewrite import masked, request_head
from policy.world import World
from tests.kit.identities import NOW, idp_token, own_token, voice_workspace

ALL = Grant(id="g9", workspace="w1", account="a-eu", subject="team:voice", operations=OPERATIONS)
WORLD = World(index_of(voice_workspace(plus_grants=(ALL,))))
TOKEN = idp_token()
CREDENTIAL = "sk_car_real_0123456789"

ENDPOINTS = [endpoint for profile in PROFILES.values() for endpoint in profile.endpoints]
JUDGED_JSON = [endpoint for endpoint in ENDPOINTS if endpoint.judged in ("json_body", "message")]

names = st.sampled_from(
    [b"Authorization", b"X-API-Key", b"Connection", b"Sec-WebSocket-Protocol", b"X-Glottis-Metadata", b"Origin", b"Content-Type"]
) | st.binary(max_size=12)
values = st.sampled_from([b"Bearer x", b"bearer", b"close, X-API-Key", b"glottis.auth.x", b"glottis.v1", b"{}"]) | st.binary(
    max_size=30
)
paths = st.builds(
    lambda mount, rest: mount + rest,
    st.sampled_from([b"/cartesia", b"/kokoro", b"/cartesia/@cartesia-eu", b"/", b""]),
    st.sampled_from([endpoint.path.encode() for endpoint in ENDPOINTS]) | st.binary(max_size=20),
)
queries = st.binary(max_size=40) | st.sampled_from([b"api_key=x", b"access_token=", b"model=ink-whisper", b"a&&b=%"])
methods = st.sampled_from(["GET", "POST", "DELETE", "OPTIONS", "HEAD", "M-SEARCH"])


@st.composite
def heads(draw: st.DrawFn) -> RequestHead:
    headers = draw(st.lists(st.tuples(names, values), max_size=5))
    if draw(st.booleans()):
        headers.append((b"X-API-Key", draw(st.sampled_from([TOKEN, own_token()])).encode()))
    return RequestHead(draw(methods), draw(paths), draw(queries), headers, draw(st.booleans()), host=draw(st.binary(max_size=9)))


texts = st.text(st.characters(exclude_categories=()), max_size=20)
facts = st.none() | st.builds(
    Facts,
    model=st.none() | st.sampled_from(["sonic-3", "kokoro-82m", "ink-whisper", ""]) | texts,
    voice=st.none() | texts,
    is_voice_embedded=st.booleans(),
    speaks=st.booleans(),
    saves_audio=st.booleans(),
)


@given(heads(), facts, st.floats(NOW - 1e6, NOW + 1e6))
@settings(max_examples=150)
def test_decide_answers_any_bytes_with_one_of_four_answers(head: RequestHead, said: Facts | None, now: float) -> None:
    decision = decide(head, said, WORLD, now)

    assert isinstance(decision, Admit | NeedFacts | NeedKeys | Refusal)
    if isinstance(decision, Refusal):
        assert decision.reason in TABLE
        http_answer(decision, PROFILES["cartesia"], "2024-06-10", "0192")
        in_band_error(decision, "", None, "0192")


@given(heads(), facts)
@settings(max_examples=150)
def test_a_head_is_decided_the_same_way_twice(head: RequestHead, said: Facts | None) -> None:
    again = RequestHead(head.method, head.path, head.query, list(head.headers), head.is_websocket, host=head.host)

    assert decide(head, said, WORLD, NOW) == decide(head, said, WORLD, NOW) == decide(again, said, WORLD, NOW)


slots = st.sampled_from(["authorization", "x-api-key", "api_key", "access_token", "subprotocol"])
plain_header = st.tuples(
    st.from_regex(rb"[Xx]-[A-Za-z]{1,8}", fullmatch=True).filter(
        lambda name: not name.lower().startswith((b"x-forwarded-", b"x-glottis-"))
    ),
    st.binary(max_size=20).filter(lambda value: not set(value) & set(b"\r\n\0") and value.strip() == value),
)
plain_parameter = st.from_regex(rb"[a-z]{1,6}(=[A-Za-z0-9%+~!.]{0,8})?", fullmatch=True).filter(
    lambda piece: piece.partition(b"=")[0] not in (b"model", b"encoding")
)


@given(
    st.lists(slots, min_size=1, max_size=4),
    st.lists(plain_header, max_size=6),
    st.lists(plain_parameter, max_size=5),
    st.randoms(use_true_random=False),
)
@settings(max_examples=120)
def test_the_upstream_head_holds_no_inbound_credential_and_all_other_bytes(
    presented: list[str], plain: list[tuple[bytes, bytes]], parameters: list[bytes], random: Any
) -> None:
    spell = {
        "authorization": (random.choice([b"Authorization", b"AUTHORIZATION", b"authorization"]), b"Bearer " + TOKEN.encode()),
        "x-api-key": (random.choice([b"X-API-Key", b"x-api-key", b"X-Api-Key"]), TOKEN.encode()),
        "subprotocol": (b"Sec-WebSocket-Protocol", b"glottis.auth." + TOKEN.encode() + b", glottis.v1"),
    }
    headers: list[tuple[bytes, bytes]] = list(plain)
    pieces = list(parameters)
    for slot in presented:
        if slot in spell:
            headers.insert(random.randint(0, len(headers)), spell[slot])
        else:
            pieces.insert(random.randint(0, len(pieces)), slot.encode() + b"=" + TOKEN.encode())
    head = RequestHead("GET", b"/cartesia/tts/websocket", b"&".join(pieces), headers, True)

    decision = decide(head, None, WORLD, NOW)
    assert isinstance(decision, Admit), decision
    sent = request_head(decision.route, "GET", b"api.cartesia.test", Secret(CREDENTIAL), b"")

    for form in (TOKEN, base64.b64encode(TOKEN.encode()).decode(), TOKEN.split(".")[1], TOKEN.split(".")[2]):
        assert form.encode() not in sent
    assert sent.count(CREDENTIAL.encode()) == 1
    assert decision.route.headers == tuple(plain)
    query = b"&".join(parameters)
    assert decision.route.target == b"/tts/websocket" + (b"?" + query if query else b"")
    assert sent.count(b"\r\n\r\n") == 1
    assert sent.endswith(b"\r\n\r\n")


subjects = st.sampled_from(["team:voice", "team:lab", "user:u-alice", "service_account:agent"])
accounts = st.sampled_from(["a-eu", "a-us", "a-kk"])
grants = st.lists(
    st.builds(
        lambda account, subject, role, operations: (account, subject, role, tuple(sorted(operations))),
        accounts,
        subjects,
        st.sampled_from(["user", "manager"]),
        st.sets(st.sampled_from(OPERATIONS), max_size=3),
    ),
    max_size=6,
)
narrowings = st.none() | st.lists(subjects, max_size=2).map(tuple)


voice_lists = st.tuples(*(st.none() | st.lists(st.sampled_from(["v1", "v2"]), max_size=2).map(tuple) for _ in range(2)))


def workspace_of(
    held: list[Any],
    narrowing: Any,
    defaults: tuple[dict[str, str], dict[str, str]],
    voices: tuple[Any, Any] = (None, None),
) -> Snapshot:
    return voice_workspace(
        workspaces=(Workspace(id="w1", name="W", default_accounts=defaults[0]),),
        teams=(
            Team(id="voice", workspace="w1", name="V", default_accounts=defaults[1], allowed_voices=voices[0]),
            Team(id="lab", workspace="w1", name="L", allowed_voices=voices[1]),
        ),
        principals=(
            Principal(
                id="u-alice",
                workspace="w1",
                kind="user",
                name="A",
                teams=("voice", "lab"),
                issuer_id="i-idp",
                subject="alice",
            ),
            Principal(id="agent", workspace="w1", kind="service_account", name="Agent", teams=("lab",)),
        ),
        models=(
            Model(id="m1", workspace="w1", account="a-eu", name="sonic-3", type="text-to-speech", only=narrowing),
            Model(id="m2", workspace="w1", account="a-us", name="sonic-3", type="text-to-speech"),
            Model(id="m3", workspace="w1", account="a-kk", name="kokoro-82m", type="text-to-speech"),
            Model(id="m4", workspace="w1", account="a-eu", name="ink-whisper", type="speech-to-text"),
        ),
        grants=tuple(
            Grant(id=f"g{n}", workspace="w1", account=account, subject=subject, role=role, operations=operations)
            for n, (account, subject, role, operations) in enumerate(held)
        ),
    )


requests = st.tuples(
    st.sampled_from(
        [
            ("POST", "/tts/bytes", False),
            ("GET", "/tts/websocket", True),
            ("GET", "/voices", False),
            ("DELETE", "/voices/v1", False),
            ("POST", "/voices/clone", False),
            ("GET", "/agents", False),
            ("GET", "/api-keys", False),
            ("GET", "/anything", False),
        ]
    ),
    st.sampled_from(["", "/@cartesia-eu", "/@cartesia-us", "/@kokoro"]),
    st.sampled_from([None, "sonic-3", "kokoro-82m", "ink-whisper"]),
    st.booleans(),
    st.sampled_from([TOKEN, own_token(), own_token(operations=["tts"], accounts=["a-eu"])]),
)
defaults = st.tuples(*(st.dictionaries(st.just("cartesia"), accounts, max_size=1) for _ in range(2)))


def asked(request: Any, pin: str, world: World) -> Admit | NeedFacts | NeedKeys | Refusal:
    (method, path, is_websocket), _, model, saves, token = request
    said = Facts(model=model, voice="v1", speaks=True, saves_audio=saves)
    head = RequestHead(method, f"/cartesia{pin}{path}".encode(), b"", [(b"X-API-Key", token.encode())], is_websocket)
    opened = decide(head, said, world, NOW)
    if not is_websocket or not isinstance(opened, Admit):
        return opened
    judged = judge_message(opened.route, said, world, NOW)
    return judged if isinstance(judged, Refusal) else Admit(judged, said)


@given(grants, st.data(), narrowings, defaults, requests, voice_lists)
@settings(max_examples=150)
def test_removing_a_grant_never_admits_more(
    held: list[Any], data: st.DataObject, narrowing: Any, set_defaults: Any, request: Any, voices: Any
) -> None:
    assume(held)
    gone = data.draw(st.integers(0, len(held) - 1))
    before = World(index_of(workspace_of(held, narrowing, set_defaults, voices)))
    after = World(index_of(workspace_of(held[:gone] + held[gone + 1 :], narrowing, set_defaults, voices)))

    admitted = asked(request, request[1], after)

    if isinstance(admitted, Admit):
        # With one account less, what was ambiguous may become plain; what is reached must have been open by its pin before.
        pinned = asked(request, f"/@{admitted.route.account.name}", before)
        assert isinstance(pinned, Admit), pinned


@given(grants, narrowings, defaults, requests)
@settings(max_examples=80)
def test_narrowing_a_model_to_nobody_closes_it(held: list[Any], narrowing: Any, set_defaults: Any, request: Any) -> None:
    world = World(index_of(workspace_of(held, (), set_defaults)))
    decision = asked(request, request[1], world)

    if isinstance(decision, Admit) and decision.route.account.id == "a-eu":
        assert decision.route.model != "sonic-3"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["model_id", "transcript", "voice", "save", "context_id", "continue", "text", "Model_ID", "x"])


@given(st.lists(st.tuples(keys, json_values), max_size=6), st.booleans(), st.sampled_from(JUDGED_JSON))
@settings(max_examples=150)
def test_what_is_judged_is_what_every_parser_reads(pairs: list[tuple[str, Any]], is_ascii: bool, endpoint: Any) -> None:
    members = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=is_ascii)}" for key, value in pairs]
    body = ("{" + ", ".join(members) + "}").encode("utf-8", "surrogatepass")
    found = facts_of_json(body, endpoint)

    if isinstance(found, Unjudgeable):
        assert found.reason in TABLE
        return
    judged = [key for key, _ in pairs if key in (endpoint.model_key, endpoint.text_key, endpoint.voice_key, "save", "context_id")]
    assert len(judged) == len(set(judged))
    first = dict(reversed(pairs))
    last = dict(pairs)
    for members_read in (first, last):
        if endpoint.model_key is not None:
            assert found.model == (members_read.get(endpoint.model_key) or None)
        assert found.transcript == (members_read.get(endpoint.text_key) or "")
        assert found.context_id == members_read.get("context_id")


@given(st.binary(max_size=200), st.sampled_from(JUDGED_JSON))
def test_any_bytes_are_facts_or_unjudgeable(body: bytes, endpoint: Any) -> None:
    assert isinstance(facts_of_json(body, endpoint), Facts | Unjudgeable)


FORM_PIECES = [
    b"--b",
    b"\r\n",
    b"--",
    b"\r\n--b",
    b"--b--\r\n",
    b'Content-Disposition: form-data; name="model"',
    b'Content-Disposition: form-data; name="file"; filename="a"',
    b"\r\n\r\n",
    b"ink-whisper",
    b"\xff\0",
    b"\n",
]
STT = next(endpoint for endpoint in cartesia.PROFILE.endpoints if endpoint.id == "stt.batch")


@given(st.lists(st.sampled_from(FORM_PIECES) | st.binary(max_size=6), max_size=14).map(b"".join), st.lists(st.integers(0, 120)))
@settings(max_examples=150)
def test_a_form_is_read_the_same_however_it_is_cut(body: bytes, cuts: list[int]) -> None:
    def read(pieces: list[bytes]) -> tuple[object, bool]:
        reader = FormReader(b"multipart/form-data; boundary=b", STT)
        told: object = None
        for piece in pieces:
            news = reader.feed(piece)
            told = news if isinstance(news, Unjudgeable) else told or news
        return told, reader.is_complete

    at = sorted({min(cut, len(body)) for cut in cuts} | {0, len(body)})
    pieces = [body[start:end] for start, end in pairwise(at)]
    assert read(pieces) == read([body]) == read([body[n : n + 1] for n in range(len(body))])


@given(st.binary(max_size=60), st.binary(min_size=1, max_size=6))
def test_a_mask_keeps_the_length_and_leaves_no_secret(text: bytes, secret: bytes) -> None:
    assume(b"*" not in secret)
    found = masked(text + secret + text, Secret(secret))

    assert len(found) == 2 * len(text) + len(secret)
    assert secret not in found


@given(facts, st.sampled_from(["", "sonic-3", "ink-whisper"]), st.floats(NOW, NOW + 1e6))
def test_a_message_is_routed_or_refused(said: Facts | None, model: str, now: float) -> None:
    head = RequestHead("GET", b"/cartesia/tts/websocket", b"", [(b"X-API-Key", TOKEN.encode())], True)
    opened = decide(head, None, WORLD, NOW)
    assert isinstance(opened, Admit)

    verdict = judge_message(opened.route, said or Facts(model=model), WORLD, now)
    assert isinstance(verdict, Route | Refusal)
