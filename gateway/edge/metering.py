"""What an answer tells about its usage: how much audio it holds, what was recognised, and whether it failed inside a 200.

A bounded look at bytes that are relayed anyway. Characters are counted before the text leaves (see `policy.peek`), contexts
and audio of open sockets by the session. Where what is billed cannot be measured, that is told as `unmeasured`: a report
shows it, and nobody takes it for free. Rules: ADR 0095. Read next: `policy.audio`, `policy.events`.
"""

from typing import Final

from gateway import http1
from gateway.edge.transcript import duration_ms
from policy.audio import AudioGauge
from policy.events import EventReader
from policy.facts import Facts
from policy.form import FormReader
from policy.providers.profile import Endpoint
from policy.usage import Tally

_MOST_LOOKED_AT_BYTES: Final = 1024 * 1024
"""a transcript with word timestamps of two hours is smaller; beyond it the duration is unknown"""


class AnswerMeter:
    """Measures one answer, from its first byte on."""

    @property
    def has_failed(self) -> bool:
        """Tell whether the answer says itself that it is an error."""
        return False

    @property
    def reason(self) -> str:
        """Return that error's code."""
        return ""

    def feed(self, payload: bytes) -> bool:
        """Look at a piece of the answer's body; return whether audio came with it."""
        raise NotImplementedError

    def end(self, tally: Tally, form: FormReader | None) -> None:
        """Count what came. form: the request's, if it was one."""
        raise NotImplementedError


class TranscriptMeter(AnswerMeter):
    """Collects a recognition's JSON answer and reads the duration off it."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, payload: bytes) -> bool:
        """Look at a piece of the answer's body."""
        self._size += len(payload)
        if self._size <= _MOST_LOOKED_AT_BYTES:
            self._pieces.append(payload)
        else:
            self._pieces.clear()
        return False

    def end(self, tally: Tally, form: FormReader | None) -> None:
        """Count the duration that the provider says, else that of the file that was sent (Cartesia docs, pricing)."""
        ours = None if form is None else form.file_ms
        theirs = duration_ms(b"".join(self._pieces)) if self._size <= _MOST_LOOKED_AT_BYTES else None
        if theirs is not None:
            tally.provider_said("audio_in_ms", theirs)
        _count_or_tell(tally, "audio_in_ms", ours if theirs is None else theirs)


class AudioMeter(AnswerMeter):
    """Measures an answer that is audio. said_ms: what the provider's head says of its length, None if it does not."""

    def __init__(self, endpoint: Endpoint, output: object, said_ms: int | None) -> None:
        self._endpoint = endpoint
        self._gauge = AudioGauge.of_output(output)
        self._said_ms = said_ms

    def feed(self, payload: bytes) -> bool:
        """Look at a piece of the answer's body."""
        self._gauge.feed(payload)
        return bool(payload)

    def end(self, tally: Tally, form: FormReader | None) -> None:
        """Count the audio that came."""
        out_ms = self._gauge.milliseconds() if self._gauge.size else 0
        _count_output(tally, self._endpoint, out_ms, self._said_ms, form)


class EventsMeter(AnswerMeter):
    """Measures an answer of server-sent events."""

    def __init__(self, endpoint: Endpoint, output: object) -> None:
        self._endpoint = endpoint
        # Events carry bare samples, also where a file was asked for (Kokoro's container).
        if isinstance(output, dict) and output.get("container") == "wav":
            output = {**output, "container": "raw"}
        self._rate = AudioGauge.of_output(output)
        self._reader = EventReader()

    @property
    def has_failed(self) -> bool:
        """Tell whether an event said that the answer is an error."""
        return self._reader.has_failed

    @property
    def reason(self) -> str:
        """Return that error's code."""
        return self._reader.reason

    def feed(self, payload: bytes) -> bool:
        """Look at a piece of the answer's body."""
        return self._reader.feed(payload)

    def end(self, tally: Tally, form: FormReader | None) -> None:
        """Count the audio that came."""
        reader = self._reader
        out_ms = self._rate.duration_ms(reader.audio_bytes) if reader.audio_bytes and reader.is_whole else None
        if not reader.audio_bytes and reader.is_whole:
            out_ms = 0
        _count_output(tally, self._endpoint, out_ms, reader.said_audio_ms, form)


class NoMeter(AnswerMeter):
    """Stands where an answer is coded in a way that nobody here takes off: nothing of it can be measured."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def feed(self, payload: bytes) -> bool:
        """Take any piece for audio: where it is not, nothing tells."""
        return bool(payload)

    def end(self, tally: Tally, form: FormReader | None) -> None:
        """Count what the request alone tells."""
        if self._endpoint.metering == "stt_batch":
            _count_or_tell(tally, "audio_in_ms", None if form is None else form.file_ms)
        else:
            _count_output(tally, self._endpoint, None, None, form)


def answer_meter(endpoint: Endpoint, facts: Facts, form: FormReader | None, response: http1.Response) -> AnswerMeter | None:
    """Return what measures this answer; None if it tells nothing that is owed. form: the request's, if it was one."""
    metering = endpoint.metering
    if metering == "none":
        return None
    if response.is_coded:
        return NoMeter(endpoint)
    if metering == "stt_batch":
        return TranscriptMeter()
    # Where a form was read for its facts, they hold no format: it may stand behind the file.
    output = facts.output if form is None else form.output
    if response.content_type.startswith(b"text/event-stream"):
        return EventsMeter(endpoint, output)
    return AudioMeter(endpoint, output, response.audio_ms)


def _count_output(tally: Tally, endpoint: Endpoint, out_ms: int | None, said_ms: int | None, form: FormReader | None) -> None:
    """Count what was spoken, and for a voice changer what it was given: that is what is billed there (Cartesia docs)."""
    if said_ms is not None:
        tally.provider_said("audio_out_ms", said_ms)
    if endpoint.metering == "voice_changer":
        given_ms = None if form is None else form.file_ms
        # It speaks as long as it listened: where the clip cannot be measured, what came out stands for what went in.
        _count_or_tell(tally, "audio_in_ms", given_ms if given_ms is not None else out_ms)
        if out_ms:
            tally.set("audio_out_ms", out_ms)
    elif out_ms != 0:
        _count_or_tell(tally, "audio_out_ms", out_ms)


def _count_or_tell(tally: Tally, unit: str, quantity: int | None) -> None:
    if quantity is None:
        tally.set("unmeasured", 1)
    elif quantity:
        tally.set(unit, quantity)
