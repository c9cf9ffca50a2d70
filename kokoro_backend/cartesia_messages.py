"""Cartesia's wire shapes for text-to-speech: requests read, events, voices and errors written. No I/O.

What an option means here, and which are refused, is the table of docs/kokoro.md; nothing is taken silently wrong.
Sources: Cartesia's API reference and its Python SDK 4.2.0, as recorded for the gateway's tests.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kokoro_backend.audio import SAMPLE_BYTES, Encoding, OutputFormat
from kokoro_backend.errors import Problem, ProblemError, bad_request
from kokoro_backend.phonemes import is_supported_language
from kokoro_backend.synthesis import Manner, Timed
from kokoro_backend.voices import Voice, VoiceCatalogue

MODEL = "kokoro-82m"
NEWEST_VERSION = "2026-08-14"
MAX_TRANSCRIPT = 20_000
"""Code points of one message."""
_JSON_ERRORS_SINCE = "2026-03-01"
_BUFFER_DELAY_MS = 3000
_SAMPLE_RATES = (8000, 16000, 22050, 24000, 44100, 48000)
_MP3_BIT_RATES = (32_000, 64_000, 96_000, 128_000, 192_000)
_SPEEDS = {"slow": 0.8, "normal": 1.0, "fast": 1.25}
_CONTROL_SPEEDS = {"slowest": 0.7, "slow": 0.85, "normal": 1.0, "fast": 1.2, "fastest": 1.4}
_CREATED_AT = "2025-01-27T00:00:00Z"
"""The release of Kokoro-82M v1.0, which made these voices."""


@dataclass(frozen=True)
class SpeechRequest:
    """A generation request that was understood in full."""

    transcript: str
    manner: Manner
    output: OutputFormat
    words: bool
    """Send word timestamps."""
    phonemes: bool
    """Send phoneme timestamps."""
    buffer_delay_ms: int
    """How long text may wait for the rest of its sentence; 0 speaks each message at once."""


def json_object(raw: str | bytes) -> dict[str, Any]:
    """Return the JSON object in `raw`. Raises ProblemError if it is none.

    JavaScript cuts emoji in two when a model streams: lone surrogate escapes are legal JSON, which the fast parser
    refuses; they are read by the standard one and replaced.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise bad_request("The message is not JSON.", "invalid_json") from error
    if not isinstance(value, dict):
        raise bad_request("The message must be a JSON object.", "invalid_json")
    return value


def parse_request(
    body: Mapping[str, Any], catalogue: VoiceCatalogue, *, raw_only: bool, has_timings: bool = True
) -> SpeechRequest:
    """Return the request in `body`. raw_only: SSE and WebSocket carry no container; has_timings: the engine times words.

    Raises ProblemError, which names the field.
    """
    _check_model(body)
    for option in ("pronunciation_dict_id", "duration"):
        if body.get(option) is not None:
            raise bad_request(f"{option} is not supported by {MODEL}: leave it out.", "unsupported_option")
    if body.get("save"):
        raise bad_request(f"save is not supported by {MODEL}: audio is not stored here.", "unsupported_option")
    if body.get("normalization") not in (None, "auto") and not str(body["normalization"]).startswith("en"):
        raise bad_request(f'normalization must be "auto" or an English locale for {MODEL}.', "unsupported_option")
    if not has_timings and (_flag(body, "add_timestamps") or _flag(body, "add_phoneme_timestamps")):
        raise bad_request("This server's graph gives no timestamps: leave add_timestamps out.", "unsupported_option")
    voice = _voice(body.get("voice"), catalogue)
    manner = Manner(voice, _language(body, voice), _speed(body), _volume(body))
    return SpeechRequest(
        transcript=transcript(body),
        manner=manner,
        output=_output_format(body.get("output_format"), raw_only=raw_only),
        words=_flag(body, "add_timestamps"),
        phonemes=_flag(body, "add_phoneme_timestamps"),
        buffer_delay_ms=_buffer_delay(body),
    )


def transcript(body: Mapping[str, Any]) -> str:
    """Return the transcript with lone surrogates replaced, "" if there is none."""
    text = body.get("transcript", "")
    if text is None:
        text = ""
    if not isinstance(text, str):
        raise bad_request("transcript must be a string.")
    if len(text) > MAX_TRANSCRIPT:
        raise bad_request(f"transcript is longer than {MAX_TRANSCRIPT} characters: send it in parts.", "transcript_too_long")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _check_model(body: Mapping[str, Any]) -> None:
    model = body.get("model_id")
    if not isinstance(model, str) or not model:
        raise bad_request(f'model_id is missing: write "{MODEL}".')
    if model.lower() not in (MODEL, "kokoro", "kokoro-82m-v1.0"):
        raise bad_request(f'This server has no model {model[:80]!r}: write "{MODEL}".', "model_not_found")


def _voice(value: Any, catalogue: VoiceCatalogue) -> Voice:
    if isinstance(value, Mapping):
        if "embedding" in value or value.get("mode") == "embedding":
            raise bad_request(f"{MODEL} takes voices by id, not by embedding. GET /voices lists them.", "voice_not_supported")
        value = value.get("id")
    if not isinstance(value, str) or not value:
        raise bad_request('voice is missing: pass a voice id, such as "af_heart". GET /voices lists them.')
    voice = catalogue.find(value)
    if voice is None:
        raise bad_request(
            f"{MODEL} has no voice {value[:80]!r}. GET /voices lists the {len(catalogue.voices)} voices with their ids; "
            'names such as "af_heart" are accepted as ids.',
            "voice_not_found",
        )
    return voice


def _language(body: Mapping[str, Any], voice: Voice) -> str:
    language, locale = body.get("language"), body.get("locale")
    if language is not None and locale is not None:
        raise bad_request("Set language or locale, not both.")
    value = language if language is not None else locale
    if value is None:
        if not is_supported_language(voice.language):
            raise bad_request(
                f"Voice {voice.name} speaks {voice.language_name}, which cannot be pronounced here yet. "
                'Set language to "en" to let it speak English.',
                "language_not_supported",
            )
        return voice.language
    if not isinstance(value, str):
        raise bad_request('language must be a string such as "en".')
    code = re.split("[-_]", value.lower())[0]
    if not is_supported_language(code):
        raise bad_request(f'Language {value[:20]!r} cannot be pronounced here yet: "en" can.', "language_not_supported")
    return code


def _number(value: Any, name: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad_request(f"{name} must be a number from {low} to {high}.")
    return float(value)


def _speed(body: Mapping[str, Any]) -> float:
    config = body.get("generation_config")
    if isinstance(config, Mapping) and config.get("speed") is not None:
        return _number(config["speed"], "generation_config.speed", 0.6, 1.5)
    if config is not None and not isinstance(config, Mapping):
        raise bad_request("generation_config must be an object.")
    if (speed := body.get("speed")) is not None:
        if isinstance(speed, str) and speed in _SPEEDS:
            return _SPEEDS[speed]
        if isinstance(speed, str):
            raise bad_request('speed must be "slow", "normal" or "fast".')
        return _number(speed, "speed", 0.5, 2.0)
    voice = body.get("voice")
    controls = voice.get("__experimental_controls") if isinstance(voice, Mapping) else None
    control = controls.get("speed") if isinstance(controls, Mapping) else None
    if control is None:
        return 1.0
    if isinstance(control, str) and control in _CONTROL_SPEEDS:
        return _CONTROL_SPEEDS[control]
    return 1.0 + 0.4 * _number(control, "__experimental_controls.speed", -1.0, 1.0)


def _volume(body: Mapping[str, Any]) -> float:
    config = body.get("generation_config")
    if not isinstance(config, Mapping) or config.get("volume") is None:
        return 1.0
    return _number(config["volume"], "generation_config.volume", 0.5, 2.0)


def _output_format(value: Any, *, raw_only: bool) -> OutputFormat:
    if not isinstance(value, Mapping):
        raise bad_request("output_format must be an object with container, encoding and sample_rate.")
    container = value.get("container", "raw")
    if container not in (("raw",) if raw_only else ("raw", "wav", "mp3")):
        allowed = '"raw" on this endpoint' if raw_only else '"raw", "wav" or "mp3"'
        raise bad_request(f"output_format.container must be {allowed}.")
    sample_rate = value.get("sample_rate")
    if sample_rate not in _SAMPLE_RATES or isinstance(sample_rate, bool):
        raise bad_request(f"output_format.sample_rate must be one of {', '.join(map(str, _SAMPLE_RATES))}.")
    if container == "mp3":
        bit_rate = value.get("bit_rate", 128_000)
        if bit_rate not in _MP3_BIT_RATES:
            raise bad_request(f"output_format.bit_rate must be one of {', '.join(map(str, _MP3_BIT_RATES))}.")
        return OutputFormat("mp3", "pcm_s16le", int(sample_rate), int(bit_rate))
    encoding = value.get("encoding", "pcm_s16le" if container == "wav" else None)
    known: list[Encoding] = [name for name in SAMPLE_BYTES if name == encoding]
    if not known:
        raise bad_request(f"output_format.encoding must be one of {', '.join(SAMPLE_BYTES)}.")
    return OutputFormat(container, known[0], int(sample_rate))


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false.")
    return bool(value)


def _buffer_delay(body: Mapping[str, Any]) -> int:
    value = body.get("max_buffer_delay_ms")
    return _BUFFER_DELAY_MS if value is None else int(_number(value, "max_buffer_delay_ms", 0, 5000))


def chunk_event(audio: bytes, step_ms: float, context_id: str | None, flush_id: int | None = None) -> dict[str, Any]:
    """Return the event that carries audio."""
    event: dict[str, Any] = {
        "type": "chunk",
        "data": base64.b64encode(audio).decode(),
        "done": False,
        "status_code": 206,
        "step_time": round(step_ms, 3),
    }
    return event | _ids(context_id, flush_id)


def timestamps_event(words: tuple[Timed, ...], context_id: str | None, flush_id: int | None = None) -> dict[str, Any]:
    """Return the event that says when words are spoken, in seconds from the start of the context."""
    times = {"words": [w.text for w in words], "start": [w.start for w in words], "end": [w.end for w in words]}
    event = {"type": "timestamps", "done": False, "status_code": 206, "word_timestamps": times}
    return event | _ids(context_id, flush_id)


def phonemes_event(phonemes: tuple[Timed, ...], context_id: str | None, flush_id: int | None = None) -> dict[str, Any]:
    """Return the event that says when phonemes are spoken; they are in Kokoro's alphabet."""
    times = {
        "phonemes": [p.text for p in phonemes],
        "start": [p.start for p in phonemes],
        "end": [p.end for p in phonemes],
    }
    event = {"type": "phoneme_timestamps", "done": False, "status_code": 206, "phoneme_timestamps": times}
    return event | _ids(context_id, flush_id)


def flush_done_event(context_id: str, flush_id: int) -> dict[str, Any]:
    """Return the event that all audio up to the flush is out."""
    return {"type": "flush_done", "done": False, "flush_done": True, "status_code": 206} | _ids(context_id, flush_id)


def done_event(context_id: str | None) -> dict[str, Any]:
    """Return the event that ends a context or an SSE stream."""
    return {"type": "done", "done": True, "status_code": 200} | _ids(context_id, None)


def _ids(context_id: str | None, flush_id: int | None) -> dict[str, Any]:
    ids: dict[str, Any] = {}
    if context_id is not None:
        ids["context_id"] = context_id
    if flush_id is not None:
        ids["flush_id"] = flush_id
    return ids


def has_json_errors(version: str) -> bool:
    """Say whether this `Cartesia-Version` has structured errors; none at all counts as the newest."""
    return version >= _JSON_ERRORS_SINCE if version else True


def error_event(problem: Problem, version: str, request_id: str, context_id: str | None) -> dict[str, Any]:
    """Return the in-band error of an SSE stream or a WebSocket, in the shape of the caller's version."""
    event: dict[str, Any] = {"type": "error", "done": True, "status_code": problem.status}
    if has_json_errors(version):
        event |= {
            "error_code": problem.code, "title": problem.title, "message": problem.message, "request_id": request_id,
        }  # fmt: skip
    else:
        event |= {"error": f"{problem.title}: {problem.message}"}
    return event | _ids(context_id, None)


def error_body(problem: Problem, version: str, request_id: str) -> tuple[bytes, str]:
    """Return body and media type of an HTTP error, in the shape of the caller's version."""
    if has_json_errors(version):
        fields = {
            "error_code": problem.code, "title": problem.title, "message": problem.message, "request_id": request_id,
        }  # fmt: skip
        return orjson.dumps(fields), "application/json"
    return f"{problem.title}: {problem.message}".encode(), "text/plain; charset=utf-8"


def voice_fields(voice: Voice) -> dict[str, Any]:
    """Return a voice as the API shows it; fields of all versions, which SDKs of each ignore or read."""
    spoken_name = voice.name[3:].replace("_", " ").title() if voice.name[2:3] == "_" else voice.name
    return {
        "id": voice.id,
        "name": voice.name,
        "tagline": f"{spoken_name}, {voice.locale}",
        "description": f"{spoken_name}: a {voice.gender} {voice.language_name} voice of Kokoro-82M.",
        "language": voice.language,
        "locales": [{"locale": voice.locale, "is_native": True}],
        "country": voice.locale[-2:],
        "gender": voice.gender,
        "created_at": _CREATED_AT,
        "access": "public",
        "visibility": "all",
        "is_owner": False,
        "is_public": True,
    }


def voice_page(catalogue: VoiceCatalogue, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of voices: `limit` 1-100, `starting_after`, `ending_before`, `q`, `gender`, `language`, `is_owner`."""
    limit = query.get("limit", "100")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= 100):
        raise bad_request("limit must be a whole number from 1 to 100.")
    found = [voice for voice in catalogue.voices if _is_wanted(voice, query)]
    start, stop = 0, None
    if after := query.get("starting_after"):
        start = _position(found, catalogue, after) + 1
    elif before := query.get("ending_before"):
        stop = _position(found, catalogue, before)
        start = max(0, stop - int(limit))
    page = found[start:stop][: int(limit)]
    has_more = start + len(page) < len(found) if stop is None else start > 0
    body: dict[str, Any] = {"data": [voice_fields(voice) for voice in page], "has_more": has_more}
    if has_more and page:
        body["next_page"] = page[-1 if stop is None else 0].id
    return body


def _is_wanted(voice: Voice, query: Mapping[str, str]) -> bool:
    needle = query.get("q", "").lower()
    return (
        query.get("is_owner", "false").lower() != "true"
        and query.get("gender", voice.gender) == voice.gender
        and query.get("language", voice.language).lower() in (voice.language, voice.locale.lower())
        and (not needle or needle in f"{voice.name} {voice.id} {voice.language_name} {voice.gender}".lower())
    )


def _position(voices: list[Voice], catalogue: VoiceCatalogue, key: str) -> int:
    voice = catalogue.find(key)
    if voice is None or voice not in voices:
        raise bad_request(f"There is no voice {key[:80]!r} to page from.", "voice_not_found")
    return voices.index(voice)


def dumps(event: Mapping[str, Any]) -> str:
    """Return an event as compact JSON."""
    return orjson.dumps(event).decode()


NewId = Callable[[], str]

__all__ = [
    "MODEL",
    "NEWEST_VERSION",
    "NewId",
    "ProblemError",
    "SpeechRequest",
    "chunk_event",
    "done_event",
    "dumps",
    "error_body",
    "error_event",
    "flush_done_event",
    "has_json_errors",
    "json_object",
    "parse_request",
    "phonemes_event",
    "timestamps_event",
    "transcript",
    "voice_fields",
    "voice_page",
]
