"""The WebSocket's rules as a table of messages and commands, without a socket."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokoro_backend.protocol import MAX_CONTEXTS, Cancel, CartesiaSession, Delay, Finish, Flush, Open, Reply, Say
from tests.kit.speech_server import silent_voices

VOICES = silent_voices()
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


@pytest.fixture
def session() -> CartesiaSession:
    numbers = itertools.count()
    return CartesiaSession("2026-03-01", VOICES, lambda: f"id-{next(numbers)}")


def message(transcript: str, context_id: str | None = "c", **fields: Any) -> str:
    body = {"model_id": "kokoro-82m", "transcript": transcript, "voice": "af_heart", "output_format": RAW} | fields
    return json.dumps(body if context_id is None else body | {"context_id": context_id})


def kinds(commands: list[Any]) -> list[str]:
    return [type(command).__name__ for command in commands]


def test_a_message_without_continue_is_a_whole_context(session: CartesiaSession) -> None:
    commands = session.receive(message("Hello there. Goodbye now."))
    assert [command.sentence for command in commands if isinstance(command, Say)] == ["Hello there.", "Goodbye now."]
    assert kinds(commands) == ["Open", "Say", "Say", "Delay", "Finish"]


def test_tiny_sentences_of_a_message_are_said_in_company(session: CartesiaSession) -> None:
    commands = session.receive(message("Yes. Go on. We are listening."))
    assert [command.sentence for command in commands if isinstance(command, Say)] == ["Yes. Go on. We are listening."]


def test_sentences_go_out_as_they_become_certain_and_the_rest_waits(session: CartesiaSession) -> None:
    assert kinds(session.receive(message("Hello there. And", **{"continue": True}))) == ["Open", "Say", "Delay"]
    assert session.receive(message(" then", **{"continue": True})) == [Delay("c", 3.0)]
    assert session.receive(message(" bye.")) == [Say("c", "And then bye."), Delay("c", None), Finish("c")]


def test_a_buffer_delay_of_zero_speaks_each_message_at_once(session: CartesiaSession) -> None:
    commands = session.receive(message("And then", **{"continue": True, "max_buffer_delay_ms": 0}))
    assert Say("c", "And then") in commands


def test_flushes_are_counted_and_come_after_what_was_said(session: CartesiaSession) -> None:
    commands = session.receive(message("One", **{"continue": True, "flush": True}))
    assert commands[1:3] == [Say("c", "One"), Flush("c", 1)]
    assert Flush("c", 2) in session.receive(message("", **{"continue": True, "flush": True}))


@pytest.mark.parametrize("blank", ["", " "])
def test_a_closing_message_may_name_anything(session: CartesiaSession, blank: str) -> None:
    session.receive(message("Hello.", **{"continue": True}))
    closing = message(blank, model_id="sonic-latest", voice="6ccbfb76-1fc6-48f7-b71d-91ac6298247b")
    assert Finish("c") in session.receive(closing)


def test_a_message_that_speaks_with_another_voice_ends_the_context_with_an_error(session: CartesiaSession) -> None:
    session.receive(message("Hello.", **{"continue": True}))
    commands = session.receive(message("Bye.", voice="am_adam"))
    assert kinds(commands) == ["Delay", "Cancel", "Reply"]
    assert commands[-1].event["error_code"] == "context_changed"  # type: ignore[union-attr]


def test_late_input_is_refused_and_what_was_said_goes_on(session: CartesiaSession) -> None:
    session.receive(message("Hello."))
    (refusal,) = session.receive(message("More."))
    assert isinstance(refusal, Reply)
    assert refusal.event["error_code"] == "context_closed"
    session.ended("c")
    assert kinds(session.receive(message("Again.")))[0] == "Open"


def test_closing_a_context_that_is_over_is_answered_with_done(session: CartesiaSession) -> None:
    (reply,) = session.receive(message(""))
    assert isinstance(reply, Reply)
    assert reply.event == {"type": "done", "done": True, "status_code": 200, "context_id": "c"}


def test_a_cancel_ends_the_context_and_a_late_one_is_ignored(session: CartesiaSession) -> None:
    session.receive(message("Hello.", **{"continue": True}))
    commands = session.receive('{\n  "cancel": true,\n  "context_id": "c"\n}')
    assert commands[:2] == [Delay("c", None), Cancel("c")]
    assert session.receive('{"cancel": true, "context_id": "c"}') == []


def test_a_message_without_a_context_id_is_a_context_of_its_own(session: CartesiaSession) -> None:
    (opened, *_) = session.receive(message("Hello.", context_id=None))
    assert isinstance(opened, Open)
    assert opened.context_id == "id-0"
    (refusal,) = session.receive(message("Hello.", context_id=None, **{"continue": True}))
    assert isinstance(refusal, Reply)


def test_only_so_many_contexts_are_open_at_once(session: CartesiaSession) -> None:
    for number in range(MAX_CONTEXTS):
        session.receive(message("Hello", context_id=str(number), **{"continue": True}))
    (refusal,) = session.receive(message("Hello", context_id="one more"))
    assert isinstance(refusal, Reply)
    assert (refusal.event["status_code"], refusal.event["error_code"]) == (429, "concurrency_limited")


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_no_bytes_break_the_session(raw: bytes | str) -> None:
    commands = CartesiaSession("", VOICES, lambda: "id").receive(raw)
    assert all(isinstance(command, Reply) for command in commands)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "context_id",
                "transcript",
                "continue",
                "flush",
                "cancel",
                "voice",
                "output_format",
                "max_buffer_delay_ms",
                "language",
            ]
        ),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.none(), max_size=2),
    )
)
def test_no_json_breaks_the_session(fields: dict[str, Any]) -> None:
    body = json.dumps({"model_id": "kokoro-82m", "voice": "af_heart", "output_format": RAW} | fields)
    assert isinstance(CartesiaSession("", VOICES, lambda: "id").receive(body), list)


def test_timestamps_that_an_engine_cannot_give_are_refused() -> None:
    session = CartesiaSession("", VOICES, lambda: "id", has_timings=False)
    (refusal,) = session.receive(message("Hello.", add_timestamps=True))
    assert isinstance(refusal, Reply)
    assert refusal.event["error_code"] == "unsupported_option"
