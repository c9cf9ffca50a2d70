"""The process behind `glottis kokoro`: settings in, exit status out.

Starts the event loop and the server; everything else is put together in `backend` and `server`.
"""

import asyncio
import sys

import uvloop

from kokoro_backend import backend
from kokoro_backend.engine import EngineError
from kokoro_backend.phonemes import LexiconError
from kokoro_backend.server import serve
from kokoro_backend.settings import Settings
from kokoro_backend.weights import WeightsError


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status: 0 after a drain, 1 if there is nothing to serve with."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            failure = runner.run(serve(settings.host, settings.port, lambda: backend.load(settings), settings.caller_key_digest))
    except OSError as error:
        sys.stderr.write(
            f"kokoro cannot listen on {settings.host}:{settings.port}: {error.strerror}. "
            "Choose another address with GLOTTIS_KOKORO_LISTEN.\n"
        )
        return 1
    if failure is None:
        return 0
    expected = isinstance(failure, WeightsError | LexiconError | EngineError)
    sys.stderr.write(f"kokoro cannot start: {failure if expected else 'see the log'}\n")
    return 1
