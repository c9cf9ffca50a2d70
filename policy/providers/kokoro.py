"""Kokoro's surface, as data: SageMaker's container contract, and the part of Cartesia's protocol that Kokoro serves.

Under `/kokoro/` only accounts of our own backend are reached; the same accounts are also reached by model under
`/cartesia/`. On the SageMaker routes the account's only model is meant, unless a header names one. The characters counted
are those of `text`. Read next: `policy.providers.registry`.
"""

from dataclasses import replace

from policy.providers import cartesia
from policy.providers.profile import Endpoint, Profile

NAME = "kokoro"

_MODEL_HEADER = b"x-amzn-sagemaker-model-invocation-path"

PROFILE = Profile(
    name=NAME,
    mount=b"kokoro",
    providers=("kokoro",),
    json_errors_since="2026-03-01",
    version_header=b"cartesia-version",
    version_query=b"cartesia_version",
    endpoints=(
        Endpoint(
            "invocations",
            NAME,
            "tts",
            ("POST",),
            "/invocations",
            judged="json_body",
            model_type="text-to-speech",
            model_header=_MODEL_HEADER,
            takes_only_model=True,
            text_key="text",
            voice_key="voice",
            output_key="format",
            metering="characters",
        ),
        Endpoint(
            "invocations.websocket",
            NAME,
            "tts",
            ("GET",),
            "/invocations-bidirectional-stream",
            is_websocket=True,
            judged="message",
            model_type="text-to-speech",
            model_header=_MODEL_HEADER,
            takes_only_model=True,
            text_key="text",
            voice_key="voice",
            control_types=("cancel", "close"),
            output_key="sample_rate",
            metering="characters",
        ),
        Endpoint("ping", NAME, "voices.read", ("GET",), "/ping"),
        Endpoint("status", NAME, "voices.read", ("GET",), "/"),
        Endpoint("voices.list", NAME, "voices.read", ("GET",), "/voices"),
        Endpoint("voices.get", NAME, "voices.read", ("GET",), "/voices/{id}"),
        *(replace(endpoint, provider=NAME) for endpoint in (cartesia.TTS_BYTES, cartesia.TTS_SSE, cartesia.TTS_WEBSOCKET)),
    ),
)
