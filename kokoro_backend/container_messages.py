"""The container's own wire shapes: what /invocations and the bidirectional stream take and send. No I/O.

Field names are those of AWS's Kokoro sample (aws-samples/sample-kokoro-tts-for-ai-agents), so that its clients work
unchanged; `type: cancel`, `flush` and the error fields `code` and `retryable` are ours. See docs/kokoro.md.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kokoro_backend.audio import OutputFormat, can_encode_aac
from kokoro_backend.cartesia_messages import MAX_TRANSCRIPT, json_object
from kokoro_backend.engine import SAMPLE_RATE
from kokoro_backend.errors import Problem, ProblemError, bad_request
from kokoro_backend.phonemes import is_supported_language
from kokoro_backend.synthesis import Manner
from kokoro_backend.voices import VoiceCatalogue

DEFAULT_VOICE = "af_heart"
STALE_SECONDS = 56
"""SageMaker gives up on an invocation after 60 s: what has waited longer is answered 408 instead of being spoken."""
BIT_RATES = {"mp3": 48_000, "aac": 32_000}
Container = Literal["raw", "wav", "mp3", "aac"]
_CONTAINERS: dict[str, Container] = {"wav": "wav", "mp3": "mp3", "aac": "aac", "pcm": "raw"}
_SAMPLE_RATES = (8000, 16000, 22050, 24000, 44100, 48000)


@dataclass(frozen=True)
class SpeakMessage:
    """A request to speak one text."""

    request_id: str
    text: str
    manner: Manner
    output: OutputFormat


@dataclass(frozen=True)
class CancelMessage:
    """Stop speaking: the named message, or everything that was sent so far if `request_id` is None."""

    request_id: str | None


@dataclass(frozen=True)
class CloseMessage:
    """End the session after what was sent before."""


@dataclass(frozen=True)
class Invocation:
    """A request to POST /invocations."""

    speak: SpeakMessage
    is_streamed: bool
    is_sse: bool


def request_id_in(raw: str | bytes) -> str:
    """Return the message's request_id for an error answer, "unknown" if it has none that can be read."""
    try:
        value = json_object(raw).get("request_id")
    except ProblemError:
        return "unknown"
    return value if isinstance(value, str) and 0 < len(value) <= 256 else "unknown"


def parse_message(raw: str | bytes, catalogue: VoiceCatalogue, now: float) -> SpeakMessage | CancelMessage | CloseMessage:
    """Return a message of the bidirectional stream. Text and binary frames are read alike: SageMaker sends binary ones.

    now: seconds since the epoch. Raises ProblemError.
    """
    body = json_object(raw)
    kind = body.get("type", "synthesize")
    if kind == "close":
        return CloseMessage()
    if kind == "cancel":
        target = body.get("request_id")
        if target is not None and not isinstance(target, str):
            raise bad_request("request_id must be a string.")
        return CancelMessage(target)
    if kind not in ("synthesize", "speak"):
        raise bad_request('type must be "close", "cancel" or absent.', "unknown_type")
    return _speak(body, catalogue, now, container="raw")


def parse_invocation(raw: bytes, catalogue: VoiceCatalogue, now: float) -> Invocation:
    """Return the request in an /invocations body. Raises ProblemError."""
    body = json_object(raw)
    named = body.get("format", "wav")
    container = _CONTAINERS.get(named) if isinstance(named, str) else None
    if container is None:
        raise bad_request('format must be "wav", "mp3", "aac" or "pcm".')
    if container == "aac" and not can_encode_aac():
        raise bad_request(
            'This server has no AAC encoder (its operator can install the extra kokoro-aac): write "mp3", "wav" or "pcm".',
            "unsupported_option",
        )
    transport = body.get("transport", "binary")
    if transport not in ("binary", "sse"):
        raise bad_request('transport must be "binary" or "sse".')
    is_streamed = body.get("stream", True)
    if not isinstance(is_streamed, bool):
        raise bad_request("stream must be true or false.")
    return Invocation(_speak(body, catalogue, now, container=container), is_streamed, transport == "sse")


def _speak(body: Mapping[str, Any], catalogue: VoiceCatalogue, now: float, *, container: Container) -> SpeakMessage:
    request_id = body.get("request_id", "unknown")
    if not isinstance(request_id, str) or not 0 < len(request_id) <= 256:
        raise bad_request("request_id must be a string of 1 to 256 characters.")
    _check_age(body, now)
    text = body.get("text", "")
    if not isinstance(text, str) or not text.strip():
        raise bad_request("text required")
    if len(text) > MAX_TRANSCRIPT:
        raise bad_request(f"text is longer than {MAX_TRANSCRIPT} characters: send it in parts.", "text_too_long")
    name = body.get("voice", DEFAULT_VOICE)
    voice = catalogue.find(name) if isinstance(name, str) else None
    if voice is None:
        raise bad_request("This voice does not exist. GET /voices lists the voices.", "voice_not_found")
    speed = body.get("speed", 1.0)
    if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0.5 <= speed <= 2.0:
        raise bad_request("speed must be a number from 0.5 to 2.0.")
    sample_rate = body.get("sample_rate", SAMPLE_RATE)
    if isinstance(sample_rate, bool) or sample_rate not in _SAMPLE_RATES:
        raise bad_request(f"sample_rate must be one of {', '.join(map(str, _SAMPLE_RATES))}.")
    markup = body.get("phoneme_markup", False)
    if not isinstance(markup, bool):
        raise bad_request("phoneme_markup must be true or false.")
    language = body.get("language", voice.language)
    if not isinstance(language, str) or not is_supported_language(language):
        raise bad_request(
            f"Voice {voice.name} speaks {voice.language_name}; text can be pronounced in English only. "
            'Set language to "en" to let the voice speak English.',
            "language_not_supported",
        )
    manner = Manner(voice, language, float(speed), phoneme_markup=markup)
    output = OutputFormat(container, "pcm_s16le", int(sample_rate), BIT_RATES.get(container, 0))
    return SpeakMessage(request_id, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), manner, output)


def _check_age(body: Mapping[str, Any], now: float) -> None:
    sent = body.get("request_timestamp")
    if sent is None:
        return
    if isinstance(sent, bool) or not isinstance(sent, int | float):
        raise bad_request("request_timestamp must be seconds since the epoch.")
    if now - sent > STALE_SECONDS:
        raise ProblemError(
            Problem(
                408,
                "request_stale",
                "Too late",
                f"This request was sent more than {STALE_SECONDS} s ago; nobody waits for it any more.",
            )
        )


def start_frame(request_id: str, sample_rate: int) -> str:
    """Return the control frame before a message's audio."""
    return _frame({"type": "synthesis_start", "request_id": request_id, "sample_rate": sample_rate})


def complete_frame(request_id: str, audio_seconds: float, elapsed_seconds: float, *, was_cancelled: bool = False) -> str:
    """Return the control frame after a message's audio; `cancelled` is there only if it was cut short."""
    fields: dict[str, Any] = {
        "type": "synthesis_complete",
        "request_id": request_id,
        "total_duration_s": round(audio_seconds, 3),
        "elapsed_s": round(elapsed_seconds, 3),
    }
    return _frame(fields | ({"cancelled": True} if was_cancelled else {}))


def error_frame(request_id: str, problem: Problem) -> str:
    """Return the control frame of a message that could not be spoken; the session goes on."""
    return _frame(
        {
            "type": "error",
            "request_id": request_id,
            "code": problem.code,
            "message": problem.message,
            "retryable": problem.status >= 500,
        }
    )


def sse_event(fields: Mapping[str, Any]) -> bytes:
    """Return one server-sent event: a data line and a blank line, no event name, as the AWS sample sends them."""
    return f"data: {json.dumps(fields, separators=(',', ':'))}\n\n".encode()


def sse_start(speak: SpeakMessage) -> bytes:
    """Return the event before the audio."""
    return sse_event(
        {
            "type": "audio_stream_start",
            "request_id": speak.request_id,
            "format": speak.output.container if speak.output.is_compressed else "pcm16",
            "voice": speak.manner.voice.name,
            "sample_rate": speak.output.sample_rate,
        }
    )


def sse_chunk(sequence: int, audio: bytes) -> bytes:
    """Return an event with audio as base64."""
    return sse_event({"type": "audio_chunk", "seq": sequence, "data": base64.b64encode(audio).decode()})


def sse_end(chunks: int, audio_seconds: float) -> bytes:
    """Return the event after the audio."""
    return sse_event({"type": "audio_stream_end", "total_chunks": chunks, "duration_s": round(audio_seconds, 3)})


def sse_error(request_id: str, problem: Problem) -> bytes:
    """Return the event that ends a stream which could not be finished."""
    return sse_event({"type": "error", "request_id": request_id, "code": problem.code, "message": problem.message})


def _frame(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
