"""What the command line says when the control plane refuses."""

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from contracts.secret import Secret
from glottis.client import ControlPlane
from glottis.errors import SetupError


@contextmanager
def answering(status: int, head: tuple[str, str], body: bytes) -> Iterator[ControlPlane]:
    """A control plane that gives everybody this answer, and then closes. head: the header that frames the body."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header(*head)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a test's output is pytest's."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield ControlPlane(f"http://127.0.0.1:{server.server_port}", Secret("t"))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def refusing(errors: list[dict[str, str]]) -> AbstractContextManager[ControlPlane]:
    problem = {"detail": "The request is not valid", "help": "Correct it.", "reason": "invalid_request", "request_id": "r-1"}
    body = json.dumps(problem | {"errors": errors}).encode()
    return answering(422, ("Content-Length", str(len(body))), body)


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


def test_an_answer_that_breaks_off_is_told_and_not_taken_for_whole() -> None:
    broken: list[SetupError] = []
    with answering(200, ("Content-Length", "100"), b"one\ntwo\n") as control_plane:
        with pytest.raises(SetupError) as caught:
            control_plane.request("GET", "/api/v1/export")
        broken.append(caught.value)
    with answering(200, ("Transfer-Encoding", "chunked"), b"8\r\none\ntwo\n\r\n") as control_plane:
        with pytest.raises(SetupError) as caught:
            list(control_plane.lines("/api/v1/audit/export"))
        broken.append(caught.value)

    assert [error.what.partition(" broke ")[2] for error in broken] == ["off.", "off."]


def test_a_long_answer_is_read_line_by_line() -> None:
    chunks = b"6\r\none\ntw\r\n2\r\no\n\r\n5\r\nthree\r\n0\r\n\r\n"
    with answering(200, ("Transfer-Encoding", "chunked"), chunks) as control_plane:
        assert list(control_plane.lines("/api/v1/audit/export")) == [b"one\n", b"two\n", b"three"]
