"""A Kokoro server on a free port of loopback, in a thread of the test process: real sockets, any engine.

`speech_server` serves what `load` returns; `tone_backend` is instant and deterministic (tones for phonemes, letters for
pronunciation), `real_backend` is Kokoro-82M itself with the packaged weights.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI

from kokoro_backend.backend import Backend, assemble, load
from kokoro_backend.engine import Engine, ToneEngine
from kokoro_backend.phonemes import UnsupportedLanguage, Word
from kokoro_backend.server import MAX_MESSAGE_BYTES, create_app, listening_socket
from kokoro_backend.settings import Settings
from kokoro_backend.text import spoken_form
from kokoro_backend.voices import STYLE_ROWS, STYLE_WIDTH, VoiceCatalogue
from kokoro_backend.weights import packaged_vocab, voice_hashes

# Taking the graph apart and the self-test, at the first start ever, on a machine that does other things as well.
_READY_SECONDS = 300


class LetterPhonemizer:
    """Pronounces each letter as itself: enough for everything around the model, and loaded at once."""

    def words(self, text: str, *, language: str, british: bool, phoneme_markup: bool = False) -> list[Word]:
        if language != "en":
            raise UnsupportedLanguage(language)
        vocab = packaged_vocab()
        spoken = spoken_form(text, british=british, allow_phoneme_markup=phoneme_markup).text.lower()
        return [
            Word(word, "".join(char for char in word if char in vocab) + " ")
            for word in re.findall(r"\S+", spoken)
            if any(char in vocab for char in word)
        ]


def silent_voices() -> VoiceCatalogue:
    """Return a catalogue with the 54 real names and no style."""
    style = np.zeros((STYLE_ROWS, STYLE_WIDTH), dtype=np.float32)
    return VoiceCatalogue(dict.fromkeys(voice_hashes(), style))


def tone_backend(engine: Engine | None = None, queue_limit: int = 1000) -> Backend:
    """Return a backend that needs no files."""
    return assemble(engine or ToneEngine(), LetterPhonemizer(), silent_voices(), packaged_vocab(), queue_limit)


def real_backend() -> Backend:
    """Return Kokoro-82M with the packaged weights, where the machine keeps them."""
    return load(replace(Settings.from_env(os.environ), engine="onnx", weights=None))


@dataclass(frozen=True)
class SpeechServer:
    """Where the server listens."""

    port: int
    backend: Backend

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def websocket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"


@contextmanager
def speech_server(
    make: Callable[[], Backend],
    caller_key_digest: bytes | None = None,
    *,
    wait_until_ready: bool = True,
    certificate: tuple[Path, Path] | None = None,
) -> Iterator[SpeechServer]:
    """Run a server until the block ends.

    make: called on the server's loading thread. certificate: PEM files of a chain and its key, to serve TLS as a proxy in
    front of the process would.
    """
    made: list[Backend] = []

    def make_once() -> Backend:
        made.append(make())
        return made[0]

    app = create_app(make_once, caller_key_digest)
    chain, key = certificate or (None, None)
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
        ssl_certfile=chain,
        ssl_keyfile=key,
    )
    server = uvicorn.Server(config)
    listener = listening_socket("127.0.0.1", 0)
    port: int = listener.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name="speech server")
    thread.start()
    try:
        if wait_until_ready:
            _wait_until_ready(app, server)
        yield SpeechServer(port, made[0] if made else None)  # type: ignore[arg-type]  # None only before it is ready
    finally:
        server.should_exit = True
        thread.join()


def _wait_until_ready(app: FastAPI, server: uvicorn.Server) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not (server.started and app.state.backend is not None):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the speech server was not ready within {_READY_SECONDS} s")
        time.sleep(0.02)
