"""Fuzzing open sockets: `python -m tests.fuzz session --seconds 60`.

Each target takes any bytes and fails by raising; the loop is that of `tests.fuzz.loop`. What a target found is kept in
`tests/fuzz/corpus/session/<target>/` and replayed by `tests/unit/session/test_fuzz_corpus.py`.
"""

import json
from collections.abc import Callable
from pathlib import Path

from policy import frames
from policy.contexts import said_by
from policy.facts import Facts, Unjudgeable
from policy.frames import Gate, Tap, Walker, close_frame, frame
from policy.peek import facts_of_json
from policy.providers import cartesia
from policy.recall import Heard, Recall
from tests.kit.playing import Played, chunk, client_frame, done, says, speech, text

CORPUS = Path(__file__).parent / "corpus" / "session"
LIMIT = 4096
TTS = cartesia.TTS_WEBSOCKET
MESSAGE = (
    b'{"model_id":"sonic-3","context_id":"c1","transcript":"Hello there","voice":{"mode":"id","id":"v1"},'
    b'"output_format":{"container":"raw","encoding":"pcm_s16le","sample_rate":16000},"continue":true}'
)


def fuzz_frames(data: bytes) -> None:
    """Read any bytes as frames, at once and one by one, to the same end. The first byte says who sent them."""
    sender: frames.Sender = "client" if data[:1] and data[0] & 1 else "server"
    stream = data[1:]
    ends = []
    for reads in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        walker = Walker(sender, LIMIT)
        for read in reads:
            if read and walker.walk(read):
                break
        ends.append((_end(walker), walker.messages, walker.binary_bytes, walker.text_bytes))
        if sender == "client":
            gate = Gate(LIMIT)
            given = [message for read in reads if read and not gate.is_over for message in gate.feed(read)]
            assert _end(gate) == _end(walker)
            assert stream.startswith(b"".join(raw for _, raw, _ in given)) or any(raw[0] & 8 for _, raw, _ in given)
            assert gate.held_bytes <= len(stream)
        else:
            tap = Tap(LIMIT, LIMIT)
            for read in reads:
                if read and not tap.is_over:
                    tap.feed(read)
            assert (_end(tap), tap.messages) == (_end(walker), walker.messages)
    assert ends[0] == ends[1]


def _end(reader: Walker | Gate) -> object:
    close, fault = reader.close, reader.fault
    return close and (close.code, close.reason), fault and fault.code


def fuzz_session(data: bytes) -> None:
    """Play any events: each is a byte that names it and, for reads, a length and bytes. What comes out is well-formed."""
    first, rest = data[:1], data[1:]
    played = Played() if not first or first[0] & 1 else Played(b"/cartesia/stt/websocket", b"model=ink-whisper")
    session = played.session
    while rest and "Finish" not in played.log:
        event, size, rest = rest[0] % 10, int.from_bytes(rest[1:3], "big") % 1024, rest[3:]
        piece, rest = rest[:size], rest[size:]
        if event < 3:
            if piece and "EndUpstream" not in played.log:
                played.client(piece)
        elif event < 6:
            if piece:
                played.provider(piece)
        elif event == 6:
            played.after(size / 100)
        elif event == 7:
            played.run(session.drain(played.now) if size & 1 else session.world_changed(played.now))
        elif event == 8:
            played.run(session.client_ended(played.now) if size & 1 else session.upstream_ended(played.now))
        else:
            played.revoked("token", "t1")
    if "Finish" not in played.log:
        played.run(session.client_gone(played.now))
    assert played.log.count("Finish") == 1
    refused = sum(context.outcome == "refused" for context in played.contexts)
    assert refused == played.settled.contexts_refused
    assert len(played.contexts) - refused == played.settled.contexts
    for context in played.contexts:
        assert context.ended_at >= context.started_at
    _well_formed("server", bytes(played.to_client))
    _well_formed("client", bytes(played.to_upstream))


def _well_formed(sender: frames.Sender, stream: bytes) -> None:
    """Nothing stands behind a close frame; where we do not only pass bytes on, the framing is whole."""
    walker = Walker(sender, 1 << 30)
    if stream and walker.walk(stream) and walker.close is not None:
        assert walker.cut == len(stream)


def fuzz_recall(data: bytes) -> None:
    """Hear any messages (split at NUL), each as it would be heard for the first time."""
    recall, bodies = Recall(TTS), Recall(TTS, 2)
    for payload in (MESSAGE, *data.split(b"\0"), MESSAGE):
        heard, whole = recall.hear(payload), facts_of_json(payload, TTS)
        if isinstance(whole, Unjudgeable):
            assert heard == whole
            continue
        assert isinstance(heard, Heard)
        own = (heard.context_id, heard.transcript, heard.characters, heard.speaks)
        assert own == (whole.context_id, whole.transcript, whole.characters, whole.speaks)
        if whole.speaks:
            assert _judged(heard.facts) == _judged(whole)
        assert bodies.facts(payload) == whole


def _judged(facts: Facts) -> object:
    return facts.model, facts.voice, facts.is_voice_embedded, facts.saves_audio, facts.cancels


def fuzz_said(data: bytes) -> None:
    """Read any provider's message with its audio and without, to the same end."""
    said = said_by(data + b" " * 512)
    try:
        whole = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return
    if isinstance(whole, dict) and said is not None:
        for name in ("type", "context_id", "done", "status_code", "error_code"):
            if isinstance(whole.get(name), str | bool | None):
                assert getattr(said, name) == whole.get(name)


def _no_constant(constant: str) -> object:
    raise ValueError(constant)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": fuzz_frames,
    "session": fuzz_session,
    "recall": fuzz_recall,
    "said": fuzz_said,
}


def _event(kind: int, piece: bytes) -> bytes:
    return bytes([kind]) + len(piece).to_bytes(2, "big") + piece


def seeds_of(target: str) -> list[bytes]:
    """Return inputs of the right shape, the kept failures among them."""
    kept = [file.read_bytes() for file in sorted((CORPUS / target).glob("*"))]
    if target == "frames":
        up = (
            client_frame(1, b"hel", is_final=False) + client_frame(9, b"x") + client_frame(0, b"lo") + client_frame(2, bytes(200))
        )
        down = frame(1, b"x" * 130) + b"\x01\x02ab\x80\x00" + frame(10, b"") + close_frame(1000, "bye")
        return [*kept, b"\1" + up + close_frame(4001, "bye", b"abcd"), b"\0" + down]
    if target == "session":
        talk = [_event(0, speech()), _event(3, chunk()), _event(0, text(context_id="c1", cancel=True)), _event(3, done())]
        refused = [_event(0, speech("c2", model="nope")), _event(0, speech(None)), _event(3, says(type="error", done=True))]
        parts = [_event(3, chunk()[:9]), _event(0, speech("c3", model="x")), _event(3, chunk()[9:])]
        ends = [_event(7, b"1"), _event(9, b""), _event(6, b"9" * 600), _event(8, b"1"), _event(8, b"12")]
        byes = [_event(0, close_frame(1000, "", b"abcd")), _event(3, close_frame(1000, ""))]
        return [*kept, *(kind + b"".join(events) for kind in (b"\1", b"\0") for events in (talk + byes, refused, parts + ends))]
    if target == "recall":
        changed = MESSAGE.replace(b"Hello there", b"Bye").replace(b"c1", b"c2")
        escaped = MESSAGE.replace(b"Hello", b'\\"model_id\\":\\"x\\"')
        return [*kept, changed, escaped, changed + b"\0" + MESSAGE.replace(b"there", b"<break/>")]
    audio = b'{"type":"chunk","data":"AAAA","done":false,"context_id":"c1"}'
    return [*kept, audio, b'{"data" : "a\\"b","type":"error","done":true}']
