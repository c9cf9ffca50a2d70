"""What the command line says when the control plane refuses."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from contracts.secret import Secret
from glottis.client import ControlPlane
from glottis.errors import SetupError


@contextmanager
def refusing(errors: list[dict[str, str]]) -> Iterator[ControlPlane]:
    problem = {"detail": "The request is not valid", "help": "Correct it.", "reason": "invalid_request", "request_id": "r-1"}
    problem |= {"errors": errors}

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(problem).encode()
            self.send_response(422)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a test's output is pytest's."""

    server = HTTPServer(("127.0.0.1", 0), Refuses)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield ControlPlane(f"http://127.0.0.1:{server.server_port}", Secret("t"))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("field", "sentence", "said"),
    [
        ("expires_in_seconds", "Input should be at least 60", "expires_in_seconds: Input should be at least 60"),
        ("origin", "The origin must be https.", "The origin must be https."),
    ],
)
def test_a_mistake_names_its_field_once(field: str, sentence: str, said: str) -> None:
    with (
        refusing([{"field": field, "sentence": sentence}]) as control_plane,
        pytest.raises(SetupError) as caught,
    ):
        control_plane.json("GET", "/api/v1/tokens")

    assert caught.value.what == said
