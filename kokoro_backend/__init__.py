"""Self-hosted speech: Kokoro-82M behind Cartesia's wire protocol and SageMaker's container contract.

Start at `main` (the process), `server` (the routes) and `synthesis` (text in, audio out).
This package knows nothing of the gateway or the control plane; it meets them only through `contracts`.
"""
