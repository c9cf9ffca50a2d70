"""Cartesia's surface, as data: every endpoint of its SDKs and documents, with its operation class.

Sources: the endpoint table of the wire reference (SDKs 1.x to 4.x, documentation). A path that is not listed here has the
operation `unlisted`. `/agents`, `/datasets`, `/fine-tunes`, `/usage` and `/api-keys` are classed whole, so that a path that
Cartesia adds below them is governed like its neighbours. Read next: `policy.providers.registry`.
"""

from typing import Any, Final

from policy.providers.profile import Endpoint, Operation, Profile

NAME = "cartesia"
SPEECH: Final = "text-to-speech"
RECOGNITION: Final = "speech-to-text"


def _plain(operation: Operation, *rows: tuple[str, tuple[str, ...], str]) -> tuple[Endpoint, ...]:
    """Return endpoints without a model: rows of id, methods, path."""
    return tuple(Endpoint(id, NAME, operation, methods, path) for id, methods, path in rows)


_SPOKEN: dict[str, Any] = {  # keyword arguments of Endpoint, whose types are checked there
    "model_key": "model_id",
    "model_type": SPEECH,
    "text_key": "transcript",
    "voice_key": "voice",
    "output_key": "output_format",
    "metering": "characters",
}

TTS_BYTES: Endpoint = Endpoint("tts.bytes", NAME, "tts", ("POST",), "/tts/bytes", judged="json_body", **_SPOKEN)
TTS_SSE: Endpoint = Endpoint("tts.sse", NAME, "tts", ("POST",), "/tts/sse", judged="json_body", **_SPOKEN)
TTS_WEBSOCKET: Endpoint = Endpoint(
    "tts.websocket", NAME, "tts", ("GET",), "/tts/websocket", is_websocket=True, judged="message", **_SPOKEN
)

GET, POST, DELETE, PATCH = ("GET",), ("POST",), ("DELETE",), ("PATCH",)

PROFILE = Profile(
    name=NAME,
    mount=b"cartesia",
    # Our own Kokoro speaks this protocol too: changing `sonic-3` to `kokoro-82m` is all that a caller does.
    providers=("cartesia", "kokoro"),
    json_errors_since="2026-03-01",
    version_header=b"cartesia-version",
    version_query=b"cartesia_version",
    endpoints=(
        TTS_BYTES,
        TTS_SSE,
        TTS_WEBSOCKET,
        Endpoint(
            "infill.bytes",
            NAME,
            "tts",
            POST,
            "/infill/bytes",
            judged="form_field",
            model_key="model_id",
            model_type=SPEECH,
            text_key="transcript",
            voice_key="voice_id",
            output_key="output_format",
            metering="infill",
            base_characters=300,  # Cartesia docs, pricing
        ),
        # The voice changer names no model anywhere; its voice is judged where an account has a voice allow-list.
        Endpoint(
            "voice_changer.bytes",
            NAME,
            "tts",
            POST,
            "/voice-changer/bytes",
            judged="form_field",
            voice_key="voice[id]",
            output_key="output_format",
            file_key="clip",
            metering="voice_changer",
        ),
        Endpoint(
            "voice_changer.sse",
            NAME,
            "tts",
            POST,
            "/voice-changer/sse",
            judged="form_field",
            voice_key="voice[id]",
            output_key="output_format",
            file_key="clip",
            metering="voice_changer",
        ),
        Endpoint(
            "stt.batch",
            NAME,
            "stt",
            POST,
            "/stt",
            judged="form_field",
            model_key="model",
            model_type=RECOGNITION,
            file_key="file",
            metering="stt_batch",
        ),
        # The twin of /stt that the OpenAI SDK calls.
        Endpoint(
            "stt.transcriptions",
            NAME,
            "stt",
            POST,
            "/audio/transcriptions",
            judged="form_field",
            model_key="model",
            model_type=RECOGNITION,
            file_key="file",
            metering="stt_batch",
        ),
        Endpoint(
            "stt.websocket",
            NAME,
            "stt",
            GET,
            "/stt/websocket",
            is_websocket=True,
            model_key="model",
            model_in_query=True,
            model_type=RECOGNITION,
            metering="stt_stream",
        ),
        Endpoint(
            "stt.turns.websocket",
            NAME,
            "stt",
            GET,
            "/stt/turns/websocket",
            is_websocket=True,
            model_key="model",
            model_in_query=True,
            model_type=RECOGNITION,
            metering="stt_stream",
        ),
        Endpoint("access_token", NAME, "tts", POST, "/access-token", is_answered_here=True),
        *_plain(
            "voices.read",
            ("status", GET, "/"),
            ("voices.list", GET, "/voices"),
            ("voices.get", GET, "/voices/{id}"),
            ("accents.list", GET, "/accents"),
            ("pronunciation_dicts.list", GET, "/pronunciation-dicts"),
            ("pronunciation_dicts.get", GET, "/pronunciation-dicts/{id}"),
        ),
        *_plain(
            "voices.write",
            ("voices.create", POST, "/voices"),
            ("voices.update", PATCH, "/voices/{id}"),
            ("voices.delete", DELETE, "/voices/{id}"),
            ("voices.localize", POST, "/voices/localize"),
            ("voices.mix", POST, "/voices/mix"),
            ("voices.accents.update", PATCH, "/voices/{id}/accents"),
            ("voices.accents.delete", DELETE, "/voices/{id}/accents/{accent}"),
            ("pronunciation_dicts.create", POST, "/pronunciation-dicts"),
            ("pronunciation_dicts.update", PATCH, "/pronunciation-dicts/{id}"),
            ("pronunciation_dicts.delete", DELETE, "/pronunciation-dicts/{id}"),
        ),
        *_plain("voices.clone", ("voices.clone", POST, "/voices/clone"), ("voices.clone.clip", POST, "/voices/clone/clip")),
        *_plain(
            "datasets",
            ("datasets.list", GET, "/datasets"),
            ("datasets.create", POST, "/datasets"),
            ("datasets.get", GET, "/datasets/{id}"),
            ("datasets.update", PATCH, "/datasets/{id}"),
            ("datasets.delete", DELETE, "/datasets/{id}"),
            ("datasets.files.list", GET, "/datasets/{id}/files"),
            ("datasets.files.create", POST, "/datasets/{id}/files"),
            ("datasets.files.delete", DELETE, "/datasets/{id}/files/{file}"),
            ("datasets.other", (), "/datasets/{*}"),
        ),
        Endpoint(
            "fine_tunes.create",
            NAME,
            "fine_tune",
            POST,
            "/fine-tunes",
            judged="json_body",
            model_key="model_id",
            model_type=SPEECH,
        ),
        *_plain(
            "fine_tune",
            ("fine_tunes.list", GET, "/fine-tunes"),
            ("fine_tunes.get", GET, "/fine-tunes/{id}"),
            ("fine_tunes.delete", DELETE, "/fine-tunes/{id}"),
            ("fine_tunes.voices", GET, "/fine-tunes/{id}/voices"),
            ("fine_tunes.other", (), "/fine-tunes/{*}"),
        ),
        Endpoint("agents.stream", NAME, "agents", GET, "/agents/stream/{id}", is_websocket=True),
        *_plain(
            "agents",
            ("agents.list", GET, "/agents"),
            ("agents.templates", GET, "/agents/templates"),
            ("agents.get", GET, "/agents/{id}"),
            ("agents.update", PATCH, "/agents/{id}"),
            ("agents.delete", DELETE, "/agents/{id}"),
            ("agents.phone_numbers", GET, "/agents/{id}/phone-numbers"),
            ("agents.deployments.list", GET, "/agents/{id}/deployments"),
            ("agents.deployments.get", GET, "/agents/deployments/{id}"),
            ("agents.calls.list", GET, "/agents/calls"),
            ("agents.calls.get", GET, "/agents/calls/{id}"),
            ("agents.calls.audio", GET, "/agents/calls/{id}/audio"),
            ("agents.metrics.list", GET, "/agents/metrics"),
            ("agents.metrics.create", POST, "/agents/metrics"),
            ("agents.metrics.get", GET, "/agents/metrics/{id}"),
            ("agents.metrics.results", GET, "/agents/metrics/results"),
            ("agents.metrics.export", GET, "/agents/metrics/results/export"),
            ("agents.metrics.attach", POST, "/agents/{id}/metrics/{metric}"),
            ("agents.metrics.detach", DELETE, "/agents/{id}/metrics/{metric}"),
            ("agents.documents.query", GET, "/agents/{id}/documents/query"),
            ("agents.root", (), "/agents"),
            ("agents.other", (), "/agents/{*}"),
        ),
        *_plain(
            "account",
            ("usage", (), "/usage"),
            ("usage.other", (), "/usage/{*}"),
            ("api_keys", (), "/api-keys"),
            ("api_keys.other", (), "/api-keys/{*}"),
        ),
    ),
)
