"""The listeners that processes make by hand send small answers at once."""

import socket
from collections.abc import Callable

import pytest

import control_plane.main
import glottis.clickhouse.main
import kokoro_backend.server


@pytest.mark.parametrize(
    "listening",
    [control_plane.main._bound, glottis.clickhouse.main._listen, kokoro_backend.server.listening_socket],
    ids=["control plane", "clickhouse", "kokoro"],
)
def test_an_accepted_connection_does_not_wait_for_acknowledgements(listening: Callable[[str, int], socket.socket]) -> None:
    # Nagle's algorithm and delayed acknowledgements together cost 40 ms a message: found by `make bench-kokoro`.
    with listening("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
