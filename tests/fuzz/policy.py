"""Fuzzing the policy core: `python -m tests.fuzz policy --seconds 60`.

Seeds have the right shape (recorded heads, bodies, forms, tokens); what failed is kept in `tests/fuzz/corpus/policy/<target>/`,
which `make test` replays for ever after (`tests/unit/policy/test_fuzz_corpus.py`). The loop is that of `tests.fuzz.loop`.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from contracts.secret import Secret
from contracts.snapshot import Grant
from policy.decide import Admit, NeedFacts, NeedKeys, decide
from policy.facts import Facts, RequestHead, Unjudgeable
from policy.form import FormReader
from policy.index import index_of
from policy.peek import facts_of_json
from policy.providers import cartesia
from policy.providers.profile import OPERATIONS
from policy.refusal import TABLE, Refusal, http_answer, in_band_error
from policy.rewrite import request_head
from policy.scan import cartesia_version
from policy.world import World
from tests.kit.identities import NOW, b64, idp_token, jwks, own_token, signing_key, voice_workspace

CORPUS = Path(__file__).parent / "corpus" / "policy"
HEADS = Path(__file__).parents[1] / "golden" / "policy_heads"

ALL = Grant(id="g9", workspace="w1", account="a-eu", subject="team:voice", operations=OPERATIONS)
KEY = signing_key("EdDSA", "k1")
"""the same in every process, and so are its signatures: seeds stay seeds, and a run can be repeated"""
IDP_ISSUER, OWN_ISSUER = voice_workspace().issuers
WORLD = World(
    index_of(voice_workspace(plus_grants=(ALL,), issuers=(msgspec.structs.replace(IDP_ISSUER, jwks=jwks(KEY)), OWN_ISSUER)))
)
SIGNED = (idp_token(KEY).encode(), own_token().encode())
CREDENTIAL = Secret("sk_car_real_0123456789")
STT = next(endpoint for endpoint in cartesia.PROFILE.endpoints if endpoint.id == "stt.batch")
INFILL = next(endpoint for endpoint in cartesia.PROFILE.endpoints if endpoint.id == "infill.bytes")


def fuzz_exchange(data: bytes) -> None:
    """Decide a head and its body as the edge does, and check the head that goes up."""
    head_text, _, body = data.partition(b"\n\n")
    first, *lines = head_text.split(b"\n")
    method, _, target = first.partition(b" ")
    path, _, query = target.partition(b"?")
    headers = [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)]
    head = RequestHead(method.decode("latin-1"), path, query, headers, b"websocket" in head_text)
    decision = decide(head, None, WORLD, NOW)
    if isinstance(decision, NeedFacts):
        said: Facts | Unjudgeable | None
        if decision.place == "json_body":
            said = facts_of_json(body, decision.endpoint)
        else:
            assert head.scan is not None
            said = FormReader(head.scan.content_type, decision.endpoint).feed(body)
        decision = Refusal(said.reason) if isinstance(said, Unjudgeable) else decide(head, said or Facts(), WORLD, NOW)
    if isinstance(decision, Refusal):
        assert decision.reason in TABLE
        http_answer(decision, cartesia.PROFILE, cartesia_version(head), "0192")
        in_band_error(decision, cartesia_version(head), None, "0192")
        return
    if isinstance(decision, NeedKeys):
        return
    assert isinstance(decision, Admit)
    if not method.isalpha():
        return
    sent = request_head(decision.route, head.method, b"api.cartesia.test", CREDENTIAL, b"")
    assert head.scan is not None
    assert head.scan.token is not None
    assert head.scan.token not in sent
    assert sent.count(b"\r\n\r\n") == 1
    assert sent.count(CREDENTIAL.reveal()) == 1
    assert sent.count(b"\n") == sent.count(b"\r\n") == sent.count(b"\r")


def fuzz_token(data: bytes) -> None:
    """Authenticate any bytes: only the tokens that were signed are anybody's."""
    decision = decide(RequestHead("GET", b"/cartesia/voices", b"", [(b"X-API-Key", data)]), None, WORLD, NOW)
    assert isinstance(decision, Refusal) or data in SIGNED


def fuzz_json(data: bytes) -> None:
    """Read any bytes as a judged body."""
    said = facts_of_json(data, cartesia.TTS_BYTES)
    assert isinstance(said, Facts) or said.reason in TABLE


def fuzz_form(data: bytes) -> None:
    """Read any bytes as a form, whole and in two pieces, to the same end."""
    for endpoint in (STT, INFILL):
        whole = FormReader(b"multipart/form-data; boundary=b", endpoint)
        told = whole.feed(data)
        halves = FormReader(b"multipart/form-data; boundary=b", endpoint)
        first = halves.feed(data[: len(data) // 2])
        second = halves.feed(data[len(data) // 2 :])
        last = second if isinstance(second, Unjudgeable) or first is None else first
        assert told == last
        assert whole.is_complete == halves.is_complete


TARGETS: dict[str, Callable[[bytes], None]] = {
    "exchange": fuzz_exchange,
    "token": fuzz_token,
    "json": fuzz_json,
    "form": fuzz_form,
}


def seeds_of(target: str) -> list[bytes]:
    """Return inputs of the right shape, the kept failures among them."""
    kept = [file.read_bytes() for file in sorted((CORPUS / target).glob("*"))]
    if target == "exchange":
        body = b'{"model_id":"sonic-3","transcript":"Hello","voice":{"mode":"id","id":"v1"}}'
        for file in sorted(HEADS.glob("*.txt")):
            for case in file.read_bytes().split(b"=== ")[1:]:
                received = case.partition(b"\n")[2].partition(b"\n--- sent")[0]
                kept.append(received.replace(b"CALLER_TOKEN", SIGNED[0]).replace(b" HTTP/1.1\n", b"\n", 1) + b"\n\n" + body)
        return kept
    if target == "token":
        return [*kept, *SIGNED, f"{b64(b'{}')}.{b64(b'{}')}.{b64(b'x')}".encode()]
    if target == "json":
        return [*kept, b'{"model_id":"sonic-3","transcript":"a\\ud83d","voice":{"id":"v1"},"save":true,"context_id":"c"}']
    part = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\nink-whisper\r\n'
    file_part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\nContent-Type: x\r\n\r\n\r\n--c\r\n'
    return [*kept, part % b"model" + file_part + b"--b--\r\n", file_part + part % b"model_id" + part % b"voice_id" + b"--b--"]
