"""One open socket: what passes, what is refused in-band, how it ends."""

import base64
import tracemalloc
from typing import Any

import pytest

from contracts.secret import Secret
from contracts.snapshot import Grant, Issuer, Model, Snapshot, Workspace
from policy import frames
from policy.frames import close_frame, frame
from policy.refusal import Refusal
from policy.session import SessionLimits
from tests.kit.identities import IDP, idp_token, jwks, signing_key, voice_workspace
from tests.kit.playing import CREDENTIAL, MASK, Played, chunk, client_frame, done, says, speech, text
from tests.kit.tallies import final_of

STT = b"/cartesia/stt/websocket"
STT_QUERY = b"model=ink-whisper&encoding=pcm_s16le&sample_rate=16000"


def stt(**changes: object) -> Played:
    return Played(STT, STT_QUERY, **changes)  # type: ignore[arg-type]


# ---- what passes


def test_audio_passes_as_it_came() -> None:
    audio = client_frame(frames.BINARY, bytes(640)) + client_frame(frames.TEXT, b"finalize")
    assert stt().client(audio).taken() == (b"", audio)


def test_a_transcript_passes_as_it_came() -> None:
    answer = says(type="transcript", text="hello", is_final=True)
    assert stt().provider(answer).taken() == (answer, b"")


def test_a_text_passes_as_it_came_after_it_was_written_down() -> None:
    played = Played().client(speech())
    assert played.taken() == (b"", speech())
    assert played.log == ["Record", "ToUpstream"]


def test_fragments_of_a_text_are_held_until_the_last_one() -> None:
    first = client_frame(frames.TEXT, b'{"model_id":"sonic-3","context_id":"c1","voice":"v1",', is_final=False)
    last = client_frame(frames.CONTINUATION, b'"transcript":"Hi."}')
    played = Played()
    assert played.client(first).taken() == (b"", b"")
    assert played.client(last).taken() == (b"", first + last)


def test_a_ping_passes_while_a_text_is_held() -> None:
    played = Played().client(client_frame(frames.TEXT, b"{", is_final=False))
    ping = client_frame(frames.PING, b"beat")
    assert played.client(ping).taken() == (b"", ping)


def test_pongs_pass_both_ways() -> None:
    played = Played()
    assert played.client(client_frame(frames.PONG, b"a")).taken() == (b"", client_frame(frames.PONG, b"a"))
    assert played.provider(frame(frames.PONG, b"b")).taken() == (frame(frames.PONG, b"b"), b"")


def test_binary_json_is_judged_like_text() -> None:
    played = Played().client(client_frame(frames.BINARY, b'{"model_id":"nope","context_id":"c1","transcript":"Hi."}'))
    assert not played.to_upstream
    assert [error["error_code"] for error in played.errors()] == ["model_not_granted"]


# ---- what is refused in-band


def test_a_context_with_an_ungranted_model_is_refused_and_the_others_go_on() -> None:
    played = Played().client(speech("c1")).client(speech("c2", model="sonic-9")).client(speech("c3"))
    assert played.to_upstream == speech("c1") + speech("c3")
    [error] = played.errors()
    assert (error["type"], error["context_id"], error["error_code"], error["status_code"], error["done"]) == (
        "error",
        "c2",
        "model_not_granted",
        403,
        True,
    )
    assert error["request_id"] == "req-1"


def test_an_old_version_gets_the_old_shape_of_error() -> None:
    [error] = Played(version="2024-06-10").client(speech("c1", model="sonic-9")).errors()
    assert set(error) == {"type", "done", "status_code", "error", "request_id", "context_id"}


def test_a_second_message_that_names_an_ungranted_model_is_refused_and_its_context_goes_on() -> None:
    played = Played().client(speech("c1")).client(speech("c1", model="sonic-9")).client(speech("c1"))
    assert played.to_upstream == speech("c1") * 2
    assert [error["context_id"] for error in played.errors()] == ["c1"]


def test_a_closing_message_may_name_another_model() -> None:
    closing = speech("c1", "", model="sonic-latest", **{"continue": False})
    played = Played().client(speech("c1", **{"continue": True})).client(closing)
    assert played.to_upstream == speech("c1", **{"continue": True}) + closing


def test_livekits_single_space_closes_a_context_whatever_its_model() -> None:
    closing = speech("c1", " ", model="sonic-latest", **{"continue": False})
    played = Played().client(speech("c1")).client(closing)
    assert played.to_upstream == speech("c1") + closing


def test_the_close_of_a_refused_context_is_refused_likewise() -> None:
    played = Played().client(speech("c1", model="sonic-9")).client(speech("c1", "", model="sonic-3"))
    assert not played.to_upstream
    assert [error["error_code"] for error in played.errors()] == ["model_not_granted"] * 2


def test_a_blank_message_that_opens_a_context_is_judged_by_its_model() -> None:
    played = Played().client(speech("c1", "", model="sonic-9")).client(speech("c2", "", model="sonic-3"))
    assert played.to_upstream == speech("c2", "", model="sonic-3")


def test_a_message_of_an_unknown_type_passes_for_an_admitted_context_only() -> None:
    played = Played().client(text(context_id="c1", hint="x")).client(speech("c1")).client(text(context_id="c1", hint="x"))
    assert played.to_upstream == speech("c1") + text(context_id="c1", hint="x")
    assert [error["error_code"] for error in played.errors()] == ["context_unknown"]


@pytest.mark.parametrize(
    "said", [{"cancel": True}, {"cancel": True, "model_id": "sonic-3"}, {"flush": True}, {"transcript": "", "continue": False}]
)
def test_what_ends_a_context_that_was_never_opened_is_told_so(said: dict[str, object]) -> None:
    played = Played().client(text(context_id="zzz", **said))
    assert not played.to_upstream
    assert [(error["error_code"], error["context_id"]) for error in played.errors()] == [("context_unknown", "zzz")]


def test_a_context_may_be_opened_after_it_was_cancelled_too_early() -> None:
    played = Played().client(text(context_id="c1", cancel=True)).client(speech("c1", "", model="sonic-3"))
    assert played.to_upstream == speech("c1", "", model="sonic-3")


def test_a_message_without_context_and_model_is_told_that_the_model_is_missing() -> None:
    played = Played().client(text(transcript=""))
    assert [error["error_code"] for error in played.errors()] == ["model_missing"]


def test_a_late_cancel_of_a_context_that_has_ended_passes() -> None:
    played = Played().client(speech("c1")).provider(done("c1")).client(text(context_id="c1", cancel=True))
    assert played.to_upstream == speech("c1") + text(context_id="c1", cancel=True)


def test_a_session_keeps_no_context_that_has_ended_and_was_settled() -> None:
    played = Played().client(speech("c1")).provider(done("c1"))
    assert [context.transcript for context in played.contexts] == ["Hello."]
    assert played.session.ended is None


def test_a_quiet_session_keeps_nothing_of_the_texts_that_it_was_sent() -> None:
    tracemalloc.start()
    try:
        played = Played()
        for number in range(3):
            played.client(speech(f"c{number}", "a line\n" + "a" * 500_000)).provider(done(f"c{number}"))
        played.taken()
        played.contexts.clear()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 200_000


def test_the_last_256_contexts_that_ended_are_remembered_and_a_name_used_again_from_its_last_end() -> None:
    played = Played()
    names = [f"c{number}" for number in range(255)]
    for name in ("again", *names[:10], "again", *names[10:]):  # 257 ends
        played.client(speech(name)).provider(done(name))
    played.client(text(context_id="again", cancel=True)).client(text(context_id="c0", cancel=True))
    assert not played.errors()
    played.client(speech("one more")).provider(done("one more")).client(text(context_id="c0", cancel=True))
    assert [(error["error_code"], error["context_id"]) for error in played.errors()] == [("context_unknown", "c0")]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"not json", "body_not_json"),
        (b"\xff\xfe", "body_not_json"),
        (b'{"model_id":"sonic-3","model_id":"sonic-9","transcript":"Hi."}', "judged_key_twice"),
    ],
)
def test_a_message_that_cannot_be_judged_is_dropped(payload: bytes, reason: str) -> None:
    played = Played().client(client_frame(frames.TEXT, payload))
    assert not played.to_upstream
    assert [error["error_code"] for error in played.errors()] == [reason]


@pytest.mark.parametrize(
    ("payload", "context_id", "named"),
    [
        ('{"context_id":"c1","model_id":"sonic-3","transcript":7}', "c1", "transcript"),
        ('{"context_id":"c1","model_id":["x"],"transcript":"Hi."}', "c1", "model_id"),
        ('{"context_id":"c1","model_id":"a","model_id":"b","transcript":"Hi."}', "c1", "model_id"),
        ('{"context_id":"c1","model_id":"a","Transcript":"Hi."}', "c1", "transcript"),
        ('{"context_id":"c1","transcript":"Hi.","voice":{"mode":"id","id":7}}', "c1", "voice.id"),
        ('{"context_id":"c1","transcript":"Hi.","voice":7}', "c1", "voice"),
        ('{"context_id":"c1","transcript":"Hi.","voice":{"id":"a","id":"b"}}', "c1", "voice.id"),
        ('{"context_id":"c1","transcript":"Hi.","voice":{"ID":"a"}}', "c1", "voice.id"),
        ('{"context_id":"c1","context_id":"c2","transcript":"Hi."}', None, "context_id"),
        ('{"context_id":"c1","Context_Id":"c2","transcript":"Hi."}', None, "context_id"),
        ('{"context_id":7,"transcript":"Hi."}', None, "context_id"),
    ],
)
def test_the_error_of_a_message_that_cannot_be_judged_names_its_context_and_the_key(
    payload: str, context_id: str | None, named: str
) -> None:
    (error,) = Played().client(client_frame(frames.TEXT, payload.encode())).errors()
    assert error.get("context_id") == context_id
    assert f": {named}. " in error["message"]


def test_an_error_of_ours_waits_for_the_end_of_the_message_that_goes_by() -> None:
    audio = chunk("c1")
    played = Played().client(speech("c1")).provider(audio[:20]).client(speech("c2", model="sonic-9"))
    assert played.to_client == audio[:20]
    played.provider(audio[20:] + audio)
    sent = bytes(played.to_client)
    assert sent.startswith(audio + b"\x81")
    assert sent.endswith(audio)
    assert [error["context_id"] for error in played.errors()] == ["c2"]


def test_a_session_ends_when_no_place_for_an_error_comes_within_five_seconds() -> None:
    played = Played().provider(chunk("c1")[:20]).client(speech("c2", model="sonic-9")).after(4.9)
    assert "Finish" not in played.log
    assert played.after(0.2).log[-1] == "Finish"


def test_one_socket_has_a_most_of_live_contexts() -> None:
    played = Played(limits=SessionLimits(contexts=2))
    for name in ("c1", "c2", "c3"):
        played.client(speech(name))
    assert [error["error_code"] for error in played.errors()] == ["limit_reached"]
    played.provider(done("c1")).client(speech("c3"))
    assert played.to_upstream.endswith(speech("c3"))


# ---- what is counted


def test_each_context_settles_on_its_own() -> None:
    played = Played().client(speech("c1", "Hello.")).client(speech("c2", "Bye")).provider(done("c2")).provider(done("c1"))
    assert [(c.tally.key, c.outcome, c.tally.totals["characters"]) for c in played.contexts] == [
        ("req-1.2", "completed", 3),
        ("req-1.1", "completed", 6),
    ]


def test_texts_of_a_context_add_up_and_its_close_counts_nothing() -> None:
    played = Played().client(speech("c1", "Hé\U0001f600")).client(speech("c1", "<break time='1s'/>ab")).client(speech("c1", ""))
    played.provider(done("c1"))
    assert [c.characters for c in played.contexts] == [6]


def test_the_first_audio_of_a_context_is_timed() -> None:
    played = Played().client(speech("c1")).after(0.5).provider(chunk("c1")).after(2).provider(chunk("c1") + done("c1"))
    [context] = played.contexts
    assert context.first_audio_at - context.started_at == pytest.approx(0.5)
    assert context.largest_audio_gap == pytest.approx(2.0)


def test_a_providers_error_fails_its_context_alone() -> None:
    error = says(type="error", done=True, status_code=429, error_code="concurrency_limited", context_id="c1")
    played = Played().client(speech("c1")).client(speech("c2")).provider(error)
    assert played.to_client == error
    assert [(c.outcome, c.reason, c.tally.key) for c in played.contexts] == [("provider_error", "concurrency_limited", "req-1.1")]


def test_an_error_without_a_context_is_about_the_only_live_one() -> None:
    played = Played().client(speech("c1")).provider(says(type="error", done=True, status_code=500))
    assert [(c.outcome, c.reason) for c in played.contexts] == [("provider_error", "status_500")]


def test_a_cancelled_context_settles_as_cancelled() -> None:
    played = Played().client(speech("c1")).client(text(context_id="c1", cancel=True)).provider(done("c1"))
    assert [c.outcome for c in played.contexts] == ["cancelled"]


def test_a_cancelled_context_that_is_never_done_is_settled_after_a_while() -> None:
    played = Played().client(speech("c1")).client(text(context_id="c1", cancel=True)).after(31)
    assert [c.outcome for c in played.contexts] == ["cancelled"]


def test_a_message_without_a_context_is_one_of_its_own() -> None:
    played = Played().client(speech(None, "One")).client(speech(None, "Twoo"))
    played.provider(says(type="done", done=True)).provider(says(type="done", done=True))
    assert [(c.tally.key, c.characters) for c in played.contexts] == [("req-1.1", 3), ("req-1.2", 4)]


def test_an_id_that_the_provider_gives_names_the_context_that_came_without_one() -> None:
    played = Played().client(speech(None, "One")).client(speech("c2", "Two"))
    played.provider(says(type="chunk", data="AA", done=False, context_id="made-up")).provider(done("made-up"))
    assert [c.tally.key for c in played.contexts] == ["req-1.1"]


def test_a_hang_up_settles_the_live_contexts_with_what_was_sent() -> None:
    played = Played().client(speech("c1", "Hello.")).client(close_frame(1000, "", MASK))
    played.run(played.session.client_gone(played.now))
    assert [(c.outcome, c.tally.totals["characters"]) for c in played.contexts] == [("client_gone", 6)]


def test_a_provider_that_breaks_off_fails_the_live_contexts() -> None:
    played = Played().client(speech("c1"))
    played.run(played.session.upstream_ended(played.now)).run(played.session.client_ended(played.now))
    assert [c.outcome for c in played.contexts] == ["upstream_fault"]


def test_text_whose_provider_broke_off_is_owed() -> None:
    played = (
        Played()
        .client(speech("c1", "Hello."))
        .client(speech("c2", "World!"))
        .provider(says(type="error", status_code=500, done=True, context_id="c2"))
    )
    played.run(played.session.upstream_ended(played.now)).run(played.session.client_ended(played.now))
    totals = {c.tally.key: final_of(c.tally, c.outcome, 0, is_owed=c.is_owed).totals for c in played.contexts}
    assert totals == {"req-1.2": {}, "req-1.1": {"requests": 1, "characters": 6}}


def test_audio_whose_provider_broke_off_is_owed() -> None:
    played = stt().client(client_frame(frames.BINARY, bytes(32000)))
    played.run(played.session.upstream_ended(played.now)).run(played.session.client_ended(played.now))
    settled = played.settled
    assert settled.outcome == "upstream_fault"
    assert settled.tally is not None
    assert final_of(settled.tally, settled.outcome, 0, is_owed=settled.is_owed).totals == {"requests": 1, "audio_in_ms": 1000}


def test_audio_is_counted_by_its_encoding_every_fifteen_seconds_and_at_the_end() -> None:
    played = stt()
    assert played.log == ["Record"]
    played.client(client_frame(frames.BINARY, bytes(32000))).client(client_frame(frames.TEXT, b"finalize")).after(14)
    assert played.log.count("Record") == 1
    played.after(2)
    assert played.log.count("Record") == 2
    assert played.session.tally is not None
    assert played.session.tally.totals["audio_in_ms"] == 1000
    played.client(client_frame(frames.BINARY, bytes(3200))).run(played.session.client_gone(played.now))
    assert played.session.tally.totals["audio_in_ms"] == 1100


def test_audio_of_an_unknown_encoding_is_told_as_not_measured() -> None:
    played = Played(STT, b"model=ink-whisper&encoding=opus&sample_rate=16000").client(client_frame(frames.BINARY, bytes(3200)))
    played.run(played.session.client_gone(played.now))
    assert played.session.tally is not None
    assert dict(played.session.tally.totals) == {"requests": 1, "unmeasured": 1}


RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 16_000}


def spoken(context: str, size: int) -> bytes:
    """A provider's audio of so many bytes, framed."""
    data = base64.b64encode(bytes(size)).decode()
    return says(type="chunk", data=data, done=False, status_code=206, context_id=context)


def totals(played: Played) -> dict[str, dict[str, int]]:
    """What each settled context owes."""
    return {c.tally.key: final_of(c.tally, c.outcome, 0, is_owed=c.is_owed).totals for c in played.contexts}


@pytest.mark.parametrize("size", [30, 32_000])
def test_the_audio_of_each_context_is_counted_by_the_format_that_it_asked_for(size: int) -> None:
    mulaw = {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000}
    played = Played().client(speech("c1", output_format=RAW)).client(speech("c2", output_format=mulaw))
    for context in ("c1", "c2", "c1"):
        played.provider(spoken(context, size))
    played.provider(done("c1") + done("c2"))
    assert totals(played) == {
        "req-1.1": {"requests": 1, "characters": 6, "audio_out_ms": size // 16},
        "req-1.2": {"requests": 1, "characters": 6, "audio_out_ms": size // 8},
    }


def test_a_later_format_of_a_context_changes_nothing() -> None:
    other = {"container": "raw", "encoding": "pcm_f32le", "sample_rate": 44_100}
    played = Played().client(speech("c1", output_format=RAW)).client(speech("c1", "", model="sonic-9", output_format=other))
    played.provider(spoken("c1", 32_000) + done("c1"))
    assert totals(played) == {"req-1.1": {"requests": 1, "characters": 6, "audio_out_ms": 1000}}


def test_audio_of_a_format_that_was_not_named_is_told_as_not_measured() -> None:
    played = Played().client(speech("c1")).provider(spoken("c1", 320) + done("c1"))
    assert totals(played) == {"req-1.1": {"requests": 1, "characters": 6, "unmeasured": 1}}


def test_a_context_that_failed_costs_nothing_whatever_was_heard() -> None:
    played = Played().client(speech("c1", output_format=RAW)).provider(spoken("c1", 32_000))
    played.provider(says(type="error", done=True, status_code=500, context_id="c1"))
    assert totals(played) == {"req-1.1": {}}


def test_a_cancelled_context_owes_its_text_and_what_was_heard() -> None:
    played = Played().client(speech("c1", output_format=RAW)).provider(spoken("c1", 16_000))
    played.client(text(context_id="c1", cancel=True)).provider(spoken("c1", 1600) + done("c1"))
    assert [c.outcome for c in played.contexts] == ["cancelled"]
    assert totals(played) == {"req-1.1": {"requests": 1, "characters": 6, "audio_out_ms": 550}}


def test_what_is_heard_of_a_long_context_is_written_down_every_fifteen_seconds() -> None:
    played = Played().client(speech("c1", output_format=RAW)).provider(spoken("c1", 32_000)).after(16)
    assert played.log.count("Record") == 2
    played.provider(spoken("c1", 32_000) + done("c1"))
    final = final_of(played.contexts[0].tally, "completed", 0)
    assert (final.seq, final.units) == (2, {"audio_out_ms": 1000})


def test_the_containers_own_socket_ends_each_text_and_says_how_long_it_was() -> None:
    played = Played(b"/kokoro/invocations-bidirectional-stream", snapshot=voice_workspace())
    for number in (1, 2):
        played.client(text(text="Hello.", request_id=f"m{number}", sample_rate=24_000))
    for number in (1, 2):
        played.provider(says(type="synthesis_start", request_id=f"m{number}", sample_rate=24_000))
        played.provider(frame(frames.BINARY, bytes(4800 * number)))
        played.provider(says(type="synthesis_complete", request_id=f"m{number}", total_duration_s=0.1 * number, elapsed_s=0.1))
    finals = [final_of(c.tally, c.outcome, 0) for c in played.contexts]
    assert [(final.outcome, final.totals, final.provider_units) for final in finals] == [
        ("completed", {"requests": 1, "characters": 6, "audio_out_ms": 100}, {"audio_out_ms": 100}),
        ("completed", {"requests": 1, "characters": 6, "audio_out_ms": 200}, {"audio_out_ms": 200}),
    ]


@pytest.mark.parametrize("kind", ["cancel", "close"])
def test_what_the_containers_socket_is_told_about_its_texts_passes_and_costs_nothing(kind: str) -> None:
    played = Played(b"/kokoro/invocations-bidirectional-stream", snapshot=voice_workspace())
    for message in (text(text="Hello.", request_id="m1"), text(type=kind), text(type=kind, request_id="m1")):
        played.client(message)
    assert played.to_upstream == text(text="Hello.", request_id="m1") + text(type=kind) + text(type=kind, request_id="m1")
    assert (played.errors(), len(played.contexts)) == ([], 0)


def test_a_text_is_judged_and_counted_whatever_its_type_says() -> None:
    played = Played(b"/kokoro/invocations-bidirectional-stream", snapshot=voice_workspace())
    played.client(text(type="cancel", text="Hello."))
    played.provider(says(type="synthesis_complete", request_id="unknown", cancelled=True, total_duration_s=0))
    [context] = played.contexts
    assert (context.outcome, final_of(context.tally, context.outcome, 0).totals["characters"]) == ("cancelled", 6)


def test_a_control_of_the_container_says_nothing_on_cartesias_socket() -> None:
    played = Played().client(text(type="cancel"))
    assert not played.to_upstream
    assert [error["error_code"] for error in played.errors()] == ["model_missing"]


def ended_stt(*said: bytes) -> Played:
    """A recognition of one second that heard this, at its end."""
    played = stt().client(client_frame(frames.BINARY, bytes(32_000)))
    for one in said:
        played.provider(one)
    return played.run(played.session.client_gone(played.now))


STT_ERROR = says(type="error", title="No", message="No", status_code=500, error_code="bad_audio")
HEARD = says(type="transcript", text="hello", is_final=False, request_id="r")


@pytest.mark.parametrize(
    ("said", "outcome", "owed"),
    [
        ([], "client_gone", 1000),
        ([HEARD], "client_gone", 1000),
        ([STT_ERROR], "provider_error", 0),
        ([says(type="connected", request_id="r"), STT_ERROR], "provider_error", 0),
        ([HEARD, STT_ERROR], "provider_error", 1000),
        ([STT_ERROR, HEARD], "client_gone", 1000),
    ],
)
def test_a_recognition_that_failed_before_it_heard_anything_costs_nothing(said: list[bytes], outcome: str, owed: int) -> None:
    settled = ended_stt(*said).settled
    assert settled.tally is not None
    assert settled.outcome == outcome
    assert final_of(settled.tally, settled.outcome, 0, is_owed=settled.is_owed).totals.get("audio_in_ms", 0) == owed


# ---- the credential


def test_a_credential_in_an_error_is_masked_to_equal_length() -> None:
    error = says(type="error", message=f"bad key {CREDENTIAL}", status_code=401, done=True)
    played = Played().provider(error)
    assert bytes(played.to_client) == error.replace(CREDENTIAL.encode(), b"*" * 28)
    assert "credential_in_answer" in played.log


@pytest.mark.parametrize("cut", range(4, len(CREDENTIAL)))
def test_a_credential_that_is_cut_in_two_by_a_read_is_masked_whole(cut: int) -> None:
    error = says(type="error", message=f"bad key {CREDENTIAL}", status_code=401, done=True)
    at = error.index(CREDENTIAL.encode()) + cut
    played = Played().provider(error[:at]).provider(error[at:])
    assert bytes(played.to_client) == error.replace(CREDENTIAL.encode(), b"*" * 28)


def test_what_only_begins_like_a_credential_passes_with_the_next_read() -> None:
    answer = says(type="chunk", data=f"AAAA{CREDENTIAL[:9]}AAAA", done=False)
    at = answer.index(CREDENTIAL[:9].encode()) + 9
    played = Played().provider(answer[:at])
    assert bytes(played.to_client) == answer[: at - 9]
    assert bytes(played.provider(answer[at:]).to_client) == answer


def test_what_only_begins_like_a_credential_passes_before_the_end_of_the_providers_connection() -> None:
    half = says(type="chunk", data=CREDENTIAL[:9])[:-2]
    played = Played().provider(half)
    played.run(played.session.upstream_ended(played.now))
    assert bytes(played.to_client) == half


def test_a_credential_in_a_close_reason_is_masked() -> None:
    played = stt().provider(close_frame(1008, f"bad key {CREDENTIAL}"))
    assert played.close_to_client() == (1008, "bad key " + "*" * 28)


def test_a_credential_in_speech_is_not_touched() -> None:
    transcript = says(type="timestamps", word_timestamps={"words": [CREDENTIAL]})
    assert Played().provider(transcript).taken() == (transcript, b"")


# ---- ends


def test_a_clients_close_passes_and_the_providers_answer_ends_both_sides() -> None:
    goodbye = close_frame(4001, "client bye", MASK)
    played = stt().client(goodbye)
    assert played.to_upstream == goodbye
    played.provider(close_frame(4001, "client bye"))
    assert played.close_to_client() == (4001, "client bye")
    assert played.log == ["Record", "ToUpstream", "EndClient"]
    assert played.run(played.session.upstream_ended(played.now)).log[-1] == "Finish"
    settled = played.settled
    assert (settled.closed_by, settled.close_code, settled.outcome) == ("client", 4001, "completed")


def test_a_providers_close_passes_with_code_and_reason() -> None:
    played = stt().provider(close_frame(4408, "tenant quota"))
    assert played.close_to_client() == (4408, "tenant quota")
    assert (played.settled.closed_by, played.settled.close_code) == ("provider", 4408)


def test_a_providers_idle_close_is_told_apart() -> None:
    played = stt().provider(close_frame(1000, "connection idle timeout"))
    assert (played.settled.outcome, played.settled.reason) == ("completed", "provider_idle")


def test_what_the_client_sends_after_the_providers_close_still_passes_up_to_its_own() -> None:
    played = stt().provider(close_frame(1000, "")).client(client_frame(frames.BINARY, b"late"))
    assert played.to_upstream == client_frame(frames.BINARY, b"late")


def test_an_end_without_a_close_frame_stays_one() -> None:
    played = stt().provider(says(type="transcript"))
    played.run(played.session.upstream_ended(played.now))
    assert played.close_to_client() is None
    assert played.log[-1] == "EndClient"
    assert (played.settled.closed_by, played.settled.close_code, played.settled.outcome) == ("provider", 1006, "upstream_fault")


def test_a_client_that_ends_its_direction_still_gets_answers() -> None:
    played = stt()
    played.run(played.session.client_ended(played.now))
    assert played.log[-1] == "EndUpstream"
    played.provider(says(type="transcript"))
    assert played.to_client == says(type="transcript")


def test_a_session_whose_other_side_does_not_follow_is_finished_after_five_seconds() -> None:
    played = stt()
    played.run(played.session.client_ended(played.now)).after(4)
    assert played.log[-1] == "EndUpstream"
    assert played.after(1.1).log[-1] == "Finish"


@pytest.mark.parametrize("frame_of_client", [frame(frames.TEXT, b"plain"), b"\x83\x80\x00\x00\x00\x00"])
def test_a_client_that_breaks_the_framing_ends_both_sides_with_1002(frame_of_client: bytes) -> None:
    for played in (stt(), Played()):
        played.client(frame_of_client)
        close = played.close_to_client()
        assert close is not None
        assert close[0] == 1002
        assert close[1].startswith("protocol_error: ")
        upstream = played.close_to_upstream()
        assert upstream is not None
        assert upstream[0] == 1002
        assert played.log[-1] == "EndClient"


def test_a_client_that_sends_too_much_is_told_1009_and_the_provider_why() -> None:
    played = stt(limits=SessionLimits(message_bytes=1000)).client(client_frame(frames.BINARY, bytes(1001)))
    close, upstream = played.close_to_client(), played.close_to_upstream()
    assert close is not None
    assert upstream is not None
    assert close[0] == 1009
    assert upstream == (1001, "message_too_large: a message is larger than 1000 bytes")


def test_a_provider_that_sends_too_much_is_told_1009_and_the_client_why() -> None:
    played = stt(limits=SessionLimits(message_bytes=1000)).provider(frame(frames.BINARY, bytes(1001)))
    close, upstream = played.close_to_client(), played.close_to_upstream()
    assert upstream is not None
    assert upstream[0] == 1009
    assert close == (1011, "message_too_large: a message is larger than 1000 bytes")


def test_what_came_before_broken_framing_still_passes() -> None:
    played = stt().client(client_frame(frames.BINARY, b"good") + b"\x83\x80")
    assert bytes(played.to_upstream).startswith(client_frame(frames.BINARY, b"good"))


def test_a_dead_client_is_not_written_to_and_the_provider_is_told() -> None:
    played = stt()
    played.run(played.session.peer_is_dead("client", "half_open", played.now))
    assert played.close_to_upstream() == (1001, "")
    assert played.close_to_client() is None
    assert (played.settled.reason, played.settled.outcome) == ("half_open", "client_gone")


# ---- revocation, expiry, withdrawn grants, operators, drain


def test_after_a_revocation_no_byte_of_the_client_passes_and_audio_may_drain() -> None:
    played = Played().client(speech("c1")).revoked("token", "t1")
    played.taken()
    played.client(speech("c1")).client(speech("c2"))
    assert not played.to_upstream
    assert played.provider(chunk("c1")).to_client == chunk("c1")
    played.provider(done("c1"))
    close = played.close_to_client()
    assert close is not None
    assert close == (1008, "token_revoked: The token was revoked")
    assert [c.outcome for c in played.contexts] == ["completed"]
    assert (played.settled.outcome, played.settled.reason) == ("ended", "token_revoked")


def test_a_revoked_session_ends_after_the_drain_even_if_audio_goes_on() -> None:
    played = Played().client(speech("c1")).revoked("principal", "u-alice").after(4.9)
    assert played.close_to_client() is None
    played.after(0.2)
    assert played.close_to_client() == (1008, "principal_revoked: The principal's access was revoked")


def test_a_revoked_session_without_live_contexts_ends_at_once() -> None:
    assert Played().revoked("token", "t1").close_to_client() == (1008, "token_revoked: The token was revoked")
    assert stt().revoked("principal", "u-alice").close_to_client() == (
        1008,
        "principal_revoked: The principal's access was revoked",
    )


def test_a_withdrawn_grant_ends_the_session() -> None:
    played = Played().changed(grants=(Grant(id="g2", workspace="w1", account="a-kk", subject="team:voice"),))
    close = played.close_to_client()
    assert close is not None
    assert close[0] == 1008
    assert close[1].startswith("account_not_granted: ")


def test_a_deleted_model_cuts_its_contexts_and_the_session_if_they_do_not_end() -> None:
    models = tuple(model for model in voice_workspace().models if model.name != "sonic-3")
    played = Played().client(speech("c1")).changed(models=models)
    assert [(error["context_id"], error["error_code"]) for error in played.errors()] == [("c1", "model_not_granted")]
    played.taken()
    played.client(speech("c1")).client(speech("c1", ""))
    assert not played.to_upstream
    played.after(5.1)
    close = played.close_to_client()
    assert close is not None
    assert close[0] == 1008


def test_a_message_like_the_last_ones_is_judged_again_after_its_model_was_deleted() -> None:
    models = tuple(model for model in voice_workspace().models if model.name != "sonic-3")
    played = Played()
    for name in ("c1", "c2", "c3"):
        played.client(speech(name)).provider(done(name))
    played.taken()
    played.changed(models=models).client(speech("c4"))
    assert not played.to_upstream
    assert [(error["context_id"], error["error_code"]) for error in played.errors()] == [("c4", "model_not_granted")]


def issuers(expiry: str) -> tuple[Issuer, ...]:
    return (
        Issuer(
            id="i-idp",
            workspace="w1",
            issuer=IDP,
            audiences=("glottis",),
            jwks=jwks(signing_key()),
            expiry=expiry,
            leeway_seconds=0,
        ),
    )


@pytest.mark.parametrize(("expiry", "still_open", "ended"), [("hard", 59, 61), ("grace:30", 89, 91)])
def test_a_token_that_expires_ends_its_session_as_the_issuer_says(expiry: str, still_open: float, ended: float) -> None:
    snapshot = voice_workspace(issuers=issuers(expiry))
    token = idp_token(exp=1_800_000_060)
    assert Played(snapshot=snapshot, token=token).after(still_open).close_to_client() is None
    assert Played(snapshot=snapshot, token=token).after(ended).close_to_client() == (1008, "token_expired: The token has expired")


def test_a_token_may_expire_while_its_session_goes_on_where_the_issuer_says_so() -> None:
    played = Played(snapshot=voice_workspace(issuers=issuers("finish-session")), token=idp_token(exp=1_800_000_060)).after(4000)
    assert played.close_to_client() is None
    assert played.client(speech("c1")).to_upstream == speech("c1")


def test_an_administrator_ends_a_session_with_a_sentence() -> None:
    played = Played()
    played.run(played.session.end("ended_by_admin", "Incident 42", played.now))
    assert played.close_to_client() == (1008, "ended_by_admin: Incident 42")
    assert played.close_to_upstream() == (1001, "")


def test_a_drained_session_finishes_its_contexts_refuses_new_ones_and_ends_with_1012() -> None:
    played = Played().client(speech("c0")).provider(done("c0")).client(speech("c1"))
    played.run(played.session.drain(played.now)).taken()
    played.client(speech("c2")).client(speech("c1"))
    assert played.to_upstream == speech("c1")
    assert [error["error_code"] for error in played.errors()] == ["draining"]
    assert played.close_to_client() is None
    played.provider(chunk("c1") + done("c1"))
    assert played.close_to_client() == (1012, "draining: This gateway is shutting down")
    assert played.settled.outcome == "drained"


def test_a_drained_session_without_contexts_ends_at_once() -> None:
    played = Played()
    played.run(played.session.drain(played.now))
    assert played.close_to_client() == (1012, "draining: This gateway is shutting down")


def test_a_drained_transcription_ends_when_nothing_goes_by() -> None:
    played = stt()
    played.run(played.session.drain(played.now)).client(client_frame(frames.BINARY, bytes(640))).after(1.5)
    played.client(client_frame(frames.BINARY, bytes(640))).after(1.5)
    assert played.close_to_client() is None
    played.after(2)
    assert played.close_to_client() == (1012, "draining: This gateway is shutting down")


# ---- another account


def two_accounts(**changes: Any) -> Snapshot:
    """The voice team uses both Cartesia accounts; `a-eu` is the default one."""
    return voice_workspace(
        plus_grants=(Grant(id="g9", workspace="w1", account="a-us", subject="team:voice"),),
        workspaces=(Workspace(id="w1", name="Voice", default_accounts={"cartesia": "a-eu"}),),
        **changes,
    )


def test_a_first_text_of_another_account_has_that_account_dialled() -> None:
    snapshot = two_accounts()
    played = Played(snapshot=snapshot).client(client_frame(frames.PING, b"beat"))
    played.taken()
    played.client(speech("c1", model="sonic-turbo"))
    assert [route.account.id for route in played.redials] == ["a-us"]
    assert played.taken() == (frame(frames.PONG, b"beat"), b"")
    played.client(client_frame(frames.PING, b"again")).client(speech("c2", model="sonic-turbo"))
    assert played.taken() == (frame(frames.PONG, b"again"), b"")
    played.run(played.session.redialled(played.redials[0], Secret("sk_us"), played.now))
    assert played.to_upstream == speech("c1", model="sonic-turbo") + speech("c2", model="sonic-turbo")
    played.taken()
    played.client(speech("c3", model="sonic-3"))
    assert not played.to_upstream
    [error] = played.errors()
    assert error["error_code"] == "model_on_another_account"
    assert "/cartesia/@cartesia-eu/" in error["message"]


def test_another_account_that_refuses_is_told_in_band_and_ends_the_session() -> None:
    snapshot = two_accounts()
    played = Played(snapshot=snapshot).client(speech("c1", model="sonic-turbo"))
    played.run(played.session.redial_failed(Refusal("upstream_refused", "it answered 429"), played.now))
    assert [(error["context_id"], error["error_code"]) for error in played.errors()] == [("c1", "upstream_refused")]
    close = played.close_to_client()
    assert close is not None
    assert close[0] == 1008


def test_a_model_that_two_accounts_have_stays_on_the_one_that_the_socket_is_bound_to() -> None:
    sonic_3 = Model(id="m9", workspace="w1", account="a-us", name="sonic-3", type="text-to-speech")
    snapshot = two_accounts(plus_models=(sonic_3,))
    played = Played(snapshot=snapshot).client(speech("c1", model="sonic-turbo"))
    played.run(played.session.redialled(played.redials[0], Secret("sk_us"), played.now)).taken()
    assert played.client(speech("c2", model="sonic-3")).to_upstream == speech("c2", model="sonic-3")


@pytest.mark.parametrize("played", [Played(), stt()])
def test_a_quiet_session_is_left_to_the_provider_for_as_long_as_it_likes(played: Played) -> None:
    """Public reports 18 and 39: the gateway never ends an idle session, and sends nothing of its own on it."""
    for _ in range(590):  # its token ends after ten minutes
        played.after(1.0)
    assert set(played.log) <= {"Record"}
    assert played.taken() == (b"", b"")


def test_a_session_that_waits_to_say_why_it_ends_says_it_once() -> None:
    """Found by fuzzing: a revocation inside a provider's message, then broken framing, made two close frames."""
    answer = says(type="chunk", data="AAAA", done=False)
    played = Played().provider(answer[:9]).revoked("token", "t1").client(b"\xf1\x80abcd")
    played.provider(answer[9:])
    told, _ = played.taken()
    assert told == answer + close_frame(1008, "token_revoked: The token was revoked")
