"""A call of the demo that fails: one sentence with the SDK's error, the status and the reason, and no trace."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from cartesia import Cartesia

from contracts.secret import Secret
from glottis.commands.demo import speak_once
from glottis.errors import SetupError
from glottis.first_voice import CallFailed, _ensure_no_error, tts_bytes, tts_sse, tts_websocket
from glottis.ports import Ports
from glottis.stack import prepare_stack

BODY = b'{"error_code": "token_malformed", "title": "Unauthorized", "message": "Hello.", "request_id": "01a2"}'


class Refusing(BaseHTTPRequestHandler):
    """Refuses everything as the gateway refuses a token that it cannot read."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    do_POST = do_GET  # noqa: N815  # the name is http.server's

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_refused_call_ends_the_program_with_one_sentence_and_status_2(address: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "glottis.first_voice", "--base-url", f"http://{address}", "--out", str(tmp_path)],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "GLOTTIS_DEMO_TOKEN": "glt_x",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 2
    assert ended.stderr == "tts.bytes failed: AuthenticationError, status 401, reason token_malformed, request 01a2\n"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (tts_bytes, "tts.bytes failed: AuthenticationError, status 401, reason token_malformed, request 01a2"),
        (tts_sse, "tts.sse failed: AuthenticationError, status 401, reason token_malformed, request 01a2"),
        (tts_websocket, "tts.websocket failed: InvalidStatus, status 401, reason token_malformed, request 01a2"),
    ],
)
def test_each_kind_of_call_is_named_with_what_refused_it(address: str, call: object, sentence: str) -> None:
    client = Cartesia(base_url=f"http://{address}", websocket_base_url=f"ws://{address}", api_key="glt_x")
    voice = ("af_heart", "am_michael") if call is tts_websocket else "af_heart"
    assert callable(call)

    with pytest.raises(CallFailed) as failure:
        call(client, "kokoro-82m", voice)

    assert failure.value.sentence == sentence


def test_an_error_among_the_events_is_told_without_what_it_quotes() -> None:
    event = SimpleNamespace(
        type="error", status_code=429, error_code="over_budget", request_id="01a2", context_id=None, message="Hello."
    )

    with pytest.raises(CallFailed) as failure:
        _ensure_no_error("tts.sse", event)

    assert failure.value.sentence == "tts.sse failed: SimpleNamespace, status 429, reason over_budget, request 01a2"


async def test_the_demo_tells_a_failed_call_in_one_sentence(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    stack = prepare_stack(tmp_path, Ports.from_base(24700), environ, now, lambda _: 1 << 40)

    with pytest.raises(SetupError) as refusal:
        await speak_once(stack, Secret("glt_x"), tmp_path / "demo")

    assert refusal.value.what == "The demo's calls failed: tts.bytes failed: APIConnectionError, without an answer."
    assert refusal.value.to_do == f"What the parts say is in {tmp_path}/logs; start with gateway.log."
