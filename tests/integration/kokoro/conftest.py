"""Kokoro-82M itself, loaded once for the integration tests."""

from collections.abc import Iterator

import pytest

from tests.kit.speech_server import SpeechServer, real_backend, speech_server


@pytest.fixture(scope="session")
def kokoro() -> Iterator[SpeechServer]:
    """A running server with the real model."""
    with speech_server(real_backend) as server:
        yield server
