"""Connections to providers, over real sockets: reuse, age, names, addresses, TLS."""

import asyncio
import contextlib
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from contracts.snapshot import Account
from gateway.tasks import Tasks
from gateway.upstream.faults import UpstreamFault
from gateway.upstream.origin import Origin, PoolSettings
from gateway.upstream.tls import ResumingContext
from gateway.upstream.upstreams import Upstreams
from glottis.certificates import ensure_certificates
from tests.doubles.cartesia import CartesiaDouble, dead_origin
from tests.kit.waiting import until


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest_asyncio.fixture
async def tasks() -> AsyncIterator[Tasks]:
    tasks = Tasks()
    yield tasks
    await tasks.stop()


@pytest_asyncio.fixture
async def double() -> AsyncIterator[CartesiaDouble]:
    async with CartesiaDouble() as double:
        yield double


def account(origin: str, **more: object) -> Account:
    return Account(id="a1", workspace="w1", name="main", provider="cartesia", origin=origin, **more)  # type: ignore[arg-type]


def pool(origin: str, **more: float) -> PoolSettings:
    return PoolSettings(allowed_private_origins=frozenset({origin}), warm_connections=0, **more)  # type: ignore[arg-type]


def resolving_to(*answers: Sequence[str]) -> "Names":
    return Names(list(answers))


class Names:
    """A resolver that gives one answer after the other, the last one for ever."""

    def __init__(self, answers: list[Sequence[str]]) -> None:
        self._answers = answers

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


async def test_a_connection_is_used_again(double: CartesiaDouble, tasks: Tasks) -> None:
    origin = Origin(account(double.origin), pool(double.origin), tasks, Clock())
    first = await origin.dial()
    origin.give_back(first)

    assert origin.take() is first
    assert origin.take() is None


async def test_a_connection_that_the_provider_closed_is_not_used_even_before_the_loop_noticed(
    double: CartesiaDouble, tasks: Tasks
) -> None:
    origin = Origin(account(double.origin), pool(double.origin), tasks, Clock())
    connection = await origin.dial()
    await until(lambda: len(double.connections) == 1)
    origin.give_back(connection)

    double.connections[0].reset()
    await asyncio.sleep(0)  # the reset is on the wire; our loop has not polled since

    assert origin.take() is None


async def test_a_connection_on_which_the_provider_spoke_unasked_is_not_used(double: CartesiaDouble, tasks: Tasks) -> None:
    origin = Origin(account(double.origin), pool(double.origin), tasks, Clock())
    connection = await origin.dial()
    await until(lambda: len(double.connections) == 1)
    origin.give_back(connection)

    await double.connections[0].send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    await until(lambda: connection.is_lost)

    assert origin.take() is None


async def test_idle_connections_are_closed_before_a_server_would(double: CartesiaDouble, tasks: Tasks) -> None:
    clock = Clock()
    origin = Origin(account(double.origin), pool(double.origin, idle_seconds=55), tasks, clock)
    origin.give_back(await origin.dial())

    clock.now += 56
    origin.sweep()

    assert origin.idle_count == 0
    await until(lambda: double.connections[0].gone.is_set())


async def test_old_connections_are_not_used_so_that_a_name_that_moved_is_followed(double: CartesiaDouble, tasks: Tasks) -> None:
    clock = Clock()
    arrived = asyncio.Event()
    # one port on two addresses, so that only the name's answer differs
    moved = await asyncio.start_server(lambda *_: arrived.set(), "127.0.0.2", double.port)
    name = f"http://api.test:{double.port}"
    origin = Origin(account(name), pool(name), tasks, clock, resolving_to(["127.0.0.1"], ["127.0.0.2"]))
    origin.give_back(await origin.dial())

    clock.now += 301
    assert origin.take() is None
    await origin.dial()

    await asyncio.wait_for(arrived.wait(), 5)
    moved.close()


@pytest.mark.parametrize("silent", ["::1", "127.0.0.1"])
async def test_a_black_holed_address_of_either_family_is_passed_by(tasks: Tasks, silent: str) -> None:
    with full_backlog(silent) as port:
        # the same port on both addresses: the first takes no more connections, 127.0.0.2 answers
        server = await asyncio.start_server(lambda *_: None, "127.0.0.2", port)
        name = f"http://api.test:{port}"
        origin = Origin(account(name), pool(name, connect_seconds=60), tasks, Clock(), resolving_to([silent, "127.0.0.2"]))

        connection = await asyncio.wait_for(origin.dial(), 20)

        assert connection.transport.get_extra_info("peername")[0] == "127.0.0.2"
        server.close()


async def test_no_connection_in_time_is_a_timeout_of_the_connect_phase(tasks: Tasks) -> None:
    with full_backlog() as port:
        name = f"http://127.0.0.1:{port}"
        origin = Origin(account(name), pool(name, connect_seconds=0.3), tasks, Clock())

        with pytest.raises(UpstreamFault) as fault:
            await origin.dial()

    assert (fault.value.reason, fault.value.phase, fault.value.anything_sent) == ("upstream_timeout", "connect", False)


async def test_a_refused_connection_is_a_fault_of_the_connect_phase(tasks: Tasks) -> None:
    async with dead_origin() as name:
        origin = Origin(account(name), pool(name), tasks, Clock())

        with pytest.raises(UpstreamFault) as fault:
            await origin.dial()

    assert (fault.value.reason, fault.value.phase) == ("upstream_unreachable", "connect")


async def test_a_refused_connection_is_dialled_once_more_by_what_the_name_says_then(double: CartesiaDouble, tasks: Tasks) -> None:
    name = f"http://api.test:{double.port}"
    nobody = "127.0.0.2"  # the double listens on the same port of another address
    origin = Origin(account(name), pool(name), tasks, Clock(), resolving_to([nobody], ["127.0.0.1"]))
    still_refused = Origin(account(name), pool(name), tasks, Clock(), resolving_to([nobody], [nobody], ["127.0.0.1"]))

    connection = await origin.dial()

    assert connection.transport.get_extra_info("peername")[0] == "127.0.0.1"
    with pytest.raises(UpstreamFault):
        await still_refused.dial()


async def test_an_origin_that_the_operator_does_not_list_is_not_dialled_when_it_is_private(
    double: CartesiaDouble, tasks: Tasks
) -> None:
    settings = PoolSettings(warm_connections=0)
    origin = Origin(account(f"https://api.test:{double.port}"), settings, tasks, Clock(), resolving_to(["127.0.0.1"]))

    with pytest.raises(UpstreamFault) as fault:
        await origin.dial()

    assert (fault.value.reason, fault.value.phase) == ("upstream_refused_address", "guard")
    assert double.connections == []


async def test_plain_http_is_refused_for_an_origin_that_the_operator_does_not_list(double: CartesiaDouble, tasks: Tasks) -> None:
    with pytest.raises(UpstreamFault) as fault:
        Origin(account(double.origin), PoolSettings(), tasks, Clock())

    assert fault.value.reason == "upstream_refused_address"


def server_context(folder: Path) -> ssl.SSLContext:
    made = ensure_certificates(folder, datetime.datetime.now(datetime.UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)
    return context


def authority(folder: Path) -> bytes:
    return (folder / "certificates" / "authority.pem").read_bytes()


async def test_a_second_handshake_resumes_the_first_ones_session(tasks: Tasks, tmp_path: Path) -> None:
    async with CartesiaDouble(server_context(tmp_path)) as double:
        origin = Origin(account(double.origin, ca_pem=authority(tmp_path)), pool(double.origin), tasks, Clock())
        first = await origin.dial()
        answered = asyncio.Event()
        first.receiver = Answered(answered)
        first.transport.write(b"GET /voices HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(answered.wait(), 5)
        origin.give_back(first)

        second = await origin.dial()

        assert second.transport.get_extra_info("ssl_object").session_reused is True
        await until(lambda: len(double.connections) == 2)
        assert [connection.is_resumed_tls for connection in double.connections] == [False, True]


@pytest.mark.parametrize(("has_ticket", "times"), [(True, 1), (False, 2)])
async def test_a_connection_is_asked_for_its_session_only_until_it_gave_one(
    tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ticket: bool, times: int
) -> None:
    """Each look copies the session: a fifth of a millisecond, which every answer over TLS had cost."""
    asked: list[object] = []

    def remember(_: ResumingContext, tls: object) -> bool:
        asked.append(tls)
        return has_ticket

    monkeypatch.setattr(ResumingContext, "remember", remember)
    async with CartesiaDouble(server_context(tmp_path)) as double:
        origin = Origin(account(double.origin, ca_pem=authority(tmp_path)), pool(double.origin), tasks, Clock())
        connection = await origin.dial()
        for _ in range(4):
            origin.give_back(connection)
        connection.abort()

    assert len(asked) == times


async def test_a_certificate_of_another_authority_is_a_fault_of_the_tls_phase(tasks: Tasks, tmp_path: Path) -> None:
    async with CartesiaDouble(server_context(tmp_path / "theirs")) as double:
        ensure_certificates(tmp_path / "ours", datetime.datetime.now(datetime.UTC))
        origin = Origin(account(double.origin, ca_pem=authority(tmp_path / "ours")), pool(double.origin), tasks, Clock())

        with pytest.raises(UpstreamFault) as fault:
            await origin.dial()

    assert (fault.value.reason, fault.value.phase) == ("upstream_tls", "tls")


async def test_a_certificate_for_another_name_is_refused(tasks: Tasks, tmp_path: Path) -> None:
    async with CartesiaDouble(server_context(tmp_path)) as double:
        record = account(double.origin, ca_pem=authority(tmp_path), tls_server_name="api.test")
        origin = Origin(record, pool(double.origin), tasks, Clock())

        with pytest.raises(UpstreamFault) as fault:
            await origin.dial()

    assert fault.value.reason == "upstream_tls"


@pytest.mark.parametrize("said", [None, "api.test"])
async def test_the_provider_is_told_by_which_name_it_is_meant(tasks: Tasks, tmp_path: Path, said: str | None) -> None:
    """SNI: the origin's host, or the account's own name for it."""
    heard: list[str | None] = []
    context = server_context(tmp_path)
    context.sni_callback = lambda _, name, __: heard.append(name)
    async with CartesiaDouble(context) as double:
        record = account(double.origin, ca_pem=authority(tmp_path), tls_server_name=said)
        origin = Origin(record, pool(double.origin), tasks, Clock())
        with contextlib.suppress(UpstreamFault):  # the certificate is for localhost alone
            await origin.dial()

    assert heard == [said or "localhost"]


async def test_a_provider_that_does_not_speak_tls_is_a_fault_of_the_tls_phase(double: CartesiaDouble, tasks: Tasks) -> None:
    name = double.origin.replace("http", "https")
    origin = Origin(account(name), pool(name), tasks, Clock())

    async def speak() -> None:
        await until(lambda: len(double.connections) == 1)
        await double.connections[0].send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    speaking = asyncio.ensure_future(speak())
    with pytest.raises(UpstreamFault) as fault:
        await origin.dial()
    await speaking

    assert (fault.value.reason, fault.value.phase) == ("upstream_tls", "tls")


async def test_an_origin_in_use_is_kept_warm(double: CartesiaDouble, tasks: Tasks) -> None:
    settings = PoolSettings(allowed_private_origins=frozenset({double.origin}), warm_connections=3)
    origin = Origin(account(double.origin), settings, tasks, Clock())

    origin.sweep()
    await until(lambda: origin.idle_count == 3)
    origin.sweep()

    assert origin.take() is not None
    assert len(double.connections) == 3


async def test_an_origin_that_nobody_uses_is_not_kept_warm(double: CartesiaDouble, tasks: Tasks) -> None:
    clock = Clock()
    settings = PoolSettings(allowed_private_origins=frozenset({double.origin}), warm_connections=3, warm_seconds=600)
    origin = Origin(account(double.origin), settings, tasks, clock)

    clock.now += 601
    origin.sweep()
    await asyncio.sleep(0)

    assert double.connections == []


async def test_a_changed_origin_closes_the_connections_to_the_old_one(double: CartesiaDouble, tasks: Tasks) -> None:
    async with CartesiaDouble() as other:
        settings = PoolSettings(allowed_private_origins=frozenset({double.origin, other.origin}), warm_connections=0)
        upstreams = Upstreams(settings, tasks, Clock())
        before = upstreams.origin_of(account(double.origin))
        before.give_back(await before.dial())

        after = upstreams.origin_of(account(other.origin))

        assert after is not before
        await until(lambda: double.connections[0].gone.is_set())


async def test_a_record_that_changed_otherwise_keeps_its_connections(double: CartesiaDouble, tasks: Tasks) -> None:
    upstreams = Upstreams(pool(double.origin), tasks, Clock())
    before = upstreams.origin_of(account(double.origin, priority=1))

    assert upstreams.origin_of(account(double.origin, priority=2)) is before


class Answered:
    """A receiver that only notices the first bytes."""

    def __init__(self, answered: asyncio.Event) -> None:
        self._answered = answered

    def upstream_data(self, data: bytes) -> None:
        self._answered.set()

    def upstream_lost(self, error: Exception | None) -> None: ...

    def upstream_full(self) -> None: ...

    def upstream_writable(self) -> None: ...


class full_backlog:  # noqa: N801  # used as a function
    """A port of loopback whose queue is full: the system answers no further SYN."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = address
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET

    def __enter__(self) -> int:
        self._listener = socket.socket(self._family)
        self._listener.bind((self._address, 0))
        self._listener.listen(0)
        port: int = self._listener.getsockname()[1]
        self._clients = []
        for _ in range(4):
            client = socket.socket(self._family)
            client.setblocking(False)
            client.connect_ex((self._address, port))
            self._clients.append(client)
        return port

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        self._listener.close()
