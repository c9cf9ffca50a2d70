"""Self-hosted speech: Kokoro-82M behind Cartesia's wire protocol and SageMaker's container contract.

Start at `main` (the process), `server` (the routes) and `synthesis` (text in, audio out). What programs outside import is
listed here: the client of the bidirectional stream (docs/kokoro.md).
This package knows nothing of the gateway or the control plane; it meets them only through `contracts`.
"""

from kokoro_backend.client import (
    SpeechClient,
    SpeechError,
    SpeechInterrupted,
    SseReassembler,
    Transport,
    WebSocketTransport,
    told_apart,
)

__all__ = [
    "SpeechClient",
    "SpeechError",
    "SpeechInterrupted",
    "SseReassembler",
    "Transport",
    "WebSocketTransport",
    "told_apart",
]
