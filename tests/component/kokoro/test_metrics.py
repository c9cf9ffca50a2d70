"""What /metrics says after known calls: characters, phonemes, audio, waiting, first audio, real-time factor, outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import connect

from kokoro_backend.metrics import Metrics
from kokoro_backend.synthesis import Figures
from tests.kit.speech_server import SpeechServer, speech_server, tone_backend


@pytest.fixture
def fresh() -> Iterator[SpeechServer]:
    """A server that nobody has called yet."""
    with speech_server(tone_backend) as server:
        yield server


def samples(exposition: str) -> dict[str, float]:
    """Return the values by name and labels, without the buckets."""
    found = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_a_spoken_message_is_counted_with_its_characters_phonemes_and_audio(fresh: SpeechServer) -> None:
    answer = httpx.post(f"{fresh.url}/invocations", json={"text": "Hello there.", "format": "pcm"})
    found = samples(httpx.get(f"{fresh.url}/metrics").text)
    # Eleven letters and marks and the space between; the tone engine makes 50 ms of each, and of the two pads.
    assert len(answer.content) == 14 * 2 * 600 * 2
    assert found["kokoro_narrations_total{engine=tone,outcome=completed}"] == 1
    assert found["kokoro_characters_total{engine=tone}"] == 12
    assert found["kokoro_phonemes_total{engine=tone}"] == 12
    assert found["kokoro_audio_seconds_total{engine=tone}"] == pytest.approx(0.7)
    assert found["kokoro_first_audio_seconds_count{engine=tone}"] == 1
    assert found["kokoro_queue_seconds_count{engine=tone}"] == 1
    assert found["kokoro_real_time_factor_count{engine=tone}"] == 1
    assert found["kokoro_ready{}"] == 1
    assert found["kokoro_queue_depth{}"] == 0


def test_a_failed_message_is_counted_as_failed_and_has_no_first_audio(fresh: SpeechServer) -> None:
    assert httpx.post(f"{fresh.url}/invocations", json={"text": "Привет"}).status_code == 400
    found = samples(httpx.get(f"{fresh.url}/metrics").text)
    assert found["kokoro_narrations_total{engine=tone,outcome=failed}"] == 1
    assert "kokoro_first_audio_seconds_count{engine=tone}" not in found


def test_messages_of_a_session_are_counted_one_by_one(fresh: SpeechServer) -> None:
    with connect(f"{fresh.websocket_url}/invocations-bidirectional-stream") as session:
        for text in ("One, please.", "Two, please."):
            session.send(json.dumps({"text": text}))
        session.send('{"type":"close"}')
        for _ in session:
            pass
    found = samples(httpx.get(f"{fresh.url}/metrics").text)
    assert found["kokoro_narrations_total{engine=tone,outcome=completed}"] == 2
    assert found["kokoro_characters_total{engine=tone}"] == 24


def test_waiting_first_audio_and_factor_are_the_narrations_own() -> None:
    metrics = Metrics("onnx")
    metrics.narrated(Figures(20, 18, 2.0, 0.25, 0.5, 0.4), "completed")
    metrics.narrated(Figures(5, 4, 1.0, 0.75, 1.5, 0.1), "cancelled")
    found = samples(metrics.exposition().decode())
    assert found["kokoro_queue_seconds_sum{engine=onnx}"] == pytest.approx(1.0)
    assert found["kokoro_first_audio_seconds_sum{engine=onnx}"] == pytest.approx(0.5)
    assert found["kokoro_real_time_factor_sum{engine=onnx}"] == pytest.approx(0.25 + 1.5)
    assert found["kokoro_narrations_total{engine=onnx,outcome=cancelled}"] == 1
