"""The caller key, readiness and error shapes, over real sockets."""

from __future__ import annotations

import hashlib
import json
import threading

import httpx
import pytest
from fastapi.routing import APIRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from kokoro_backend import cartesia_api, container_api
from kokoro_backend.backend import Backend
from kokoro_backend.server import create_app
from tests.kit.speech_server import SpeechServer, speech_server, tone_backend

KEY = "a-caller-key-of-some-length"
DIGEST = hashlib.sha256(KEY.encode()).digest()
BODY = {
    "model_id": "kokoro-82m",
    "transcript": "Hi.",
    "voice": "af_heart",
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
}


@pytest.fixture(scope="module")
def locked_server() -> object:
    with speech_server(tone_backend, DIGEST) as server:
        yield server


def test_ping_needs_no_key_and_everything_else_does(locked_server: SpeechServer) -> None:
    routes = [*create_app(tone_backend).routes, *cartesia_api.router.routes, *container_api.router.routes]
    asked = {
        (method, route.path.replace("{voice_id}", "af_heart"))
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    answers = {
        (method, path): httpx.request(method, f"{locked_server.url}{path}", json=BODY).status_code
        for method, path in asked | {("GET", "/nothing")}
    }
    assert {answer for answer, status in answers.items() if status != 401} == {("GET", "/ping")}
    assert answers["GET", "/ping"] == 200
    assert {("POST", "/invocations"), ("POST", "/tts/sse"), ("GET", "/voices/af_heart")} <= set(answers)


@pytest.mark.parametrize("path", ["/tts/websocket", "/invocations-bidirectional-stream"])
def test_no_socket_opens_without_the_key(locked_server: SpeechServer, path: str) -> None:
    for shown in ("", "?api_key=another-key-of-some-length"):
        with pytest.raises(InvalidStatus) as refused, connect(f"{locked_server.websocket_url}{path}{shown}"):
            pass
        assert refused.value.response.status_code == 401


@pytest.mark.parametrize("headers", [{"Authorization": f"Bearer {KEY}"}, {"X-API-Key": KEY}, {"authorization": f"bearer {KEY}"}])
def test_the_key_is_taken_from_either_header(locked_server: SpeechServer, headers: dict[str, str]) -> None:
    assert httpx.post(f"{locked_server.url}/tts/bytes", json=BODY, headers=headers).status_code == 200


def test_keys_that_disagree_are_refused(locked_server: SpeechServer) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "X-API-Key": "another"}
    assert httpx.get(f"{locked_server.url}/voices", headers=headers).status_code == 401


def test_a_handshake_without_the_key_is_refused_as_http(locked_server: SpeechServer) -> None:
    with pytest.raises(InvalidStatus) as refused, connect(f"{locked_server.websocket_url}/tts/websocket"):
        pass
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["error_code"] == "unauthorized"
    with connect(f"{locked_server.websocket_url}/tts/websocket?api_key={KEY}"):
        pass


def test_errors_of_old_versions_are_plain_text(tone_server: SpeechServer) -> None:
    answer = httpx.get(f"{tone_server.url}/nothing", headers={"Cartesia-Version": "2025-04-16"})
    assert (answer.status_code, answer.text) == (404, "Not found: This server has no such path.")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model_id": "sonic-3"}, "model_not_found"),
        ({"model_id": None}, "invalid_request"),
        ({"transcript": " "}, "invalid_request"),
        ({"transcript": "x" * 20_001}, "transcript_too_long"),
        ({"transcript": "Это русский текст."}, "script_not_supported"),
        ({"voice": {"mode": "embedding", "embedding": [0.1]}}, "voice_not_supported"),
        ({"voice": "jf_alpha"}, "language_not_supported"),
        ({"language": "ja"}, "language_not_supported"),
        ({"language": "en", "locale": "en-GB"}, "invalid_request"),
        ({"output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 11025}}, "invalid_request"),
        ({"output_format": "wav"}, "invalid_request"),
        ({"save": True}, "unsupported_option"),
        ({"duration": 3}, "unsupported_option"),
        ({"pronunciation_dict_id": "d"}, "unsupported_option"),
        ({"generation_config": {"speed": 3}}, "invalid_request"),
        ({"speed": "quick"}, "invalid_request"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_code(tone_server: SpeechServer, change: dict[str, object], code: str) -> None:
    answer = httpx.post(f"{tone_server.url}/tts/bytes", json=BODY | change)
    assert (answer.status_code, answer.json()["error_code"]) == (400, code)
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_a_foreign_voice_speaks_english_when_asked_to(tone_server: SpeechServer) -> None:
    answer = httpx.post(f"{tone_server.url}/tts/bytes", json=BODY | {"voice": "jf_alpha", "language": "en-US"})
    assert answer.status_code == 200


def test_a_body_beyond_a_mebibyte_is_refused(tone_server: SpeechServer) -> None:
    answer = httpx.post(f"{tone_server.url}/tts/bytes", content=b" " * (1 << 20) + b"{}")
    assert answer.status_code == 413


def test_ping_says_503_until_the_model_is_warm() -> None:
    may_load = threading.Event()

    def slow() -> Backend:
        assert may_load.wait(30)
        return tone_backend()

    with speech_server(slow, wait_until_ready=False) as server:
        try:
            ping = _first_answer(server)
            voices = httpx.get(f"{server.url}/voices")
        finally:
            may_load.set()
    assert ping.status_code == 503
    assert (voices.status_code, voices.json()["error_code"]) == (503, "not_ready")


def _first_answer(server: SpeechServer) -> httpx.Response:
    # The socket listens already; the answer comes when the server accepts.
    return httpx.get(f"{server.url}/ping", timeout=30)
