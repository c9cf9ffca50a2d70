"""One tone server for the component tests: everything is real but the model."""

from collections.abc import Iterator

import pytest

from tests.kit.speech_server import SpeechServer, speech_server, tone_backend


@pytest.fixture(scope="session")
def tone_server() -> Iterator[SpeechServer]:
    """A running server whose speech is tones."""
    with speech_server(tone_backend) as server:
        yield server
