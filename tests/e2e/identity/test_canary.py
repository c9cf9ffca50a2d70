"""Nothing lost, nothing leaked: unique tokens, credentials and texts go through every surface, and every sink is searched.

One run: all processes at log level debug, a bus of their own whose files are read from disk. Surfaces succeed and fail
(wrong token, upstream down, upstream that repeats the credential, 5xx, a grant that is missing). What may stand where: a
token nowhere but in the answer that minted it, a credential at the provider alone, a text at the provider alone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import nats.aio.client
import pytest
import websockets

from contracts.secret import Secret
from control_plane.clickhouse.connection import ClickHouse
from control_plane.clickhouse.schema import migrate
from glottis.embedded.postgres import Postgres
from tests.doubles.cartesia import CartesiaDouble, Connection, Received
from tests.doubles.cartesia_websocket import Socket, SocketsDouble
from tests.doubles.otlp import OtlpReceiver, http_receiver
from tests.kit.canaries import Sinks
from tests.kit.installation import Installation, installed, service_command
from tests.kit.processes import Child, free_port
from tests.kit.services import ClickhouseDatabase, NatsAccount, nats_seeds, nats_server, service_folder

pytestmark = pytest.mark.timeout(240)

DEADLINE = 30.0
FORM = "multipart/form-data; boundary=b"


@dataclass
class Canaries:
    """What must not turn up. Each `text` is made once and is at the provider or nowhere."""

    credential: str = field(default_factory=lambda: f"sk_car_canary_{secrets.token_hex(16)}")
    down_credential: str = field(default_factory=lambda: f"sk_car_down_{secrets.token_hex(16)}")
    refused_credential: str = field(default_factory=lambda: f"sk_car_refused_{secrets.token_hex(16)}")
    export_header: str = field(default_factory=lambda: f"otlp-{secrets.token_hex(16)}")
    tokens: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    kept_back: list[str] = field(default_factory=list)

    def text(self, *, is_sent: bool = True) -> str:
        """Return a new text; is_sent: the provider is meant to hear it."""
        core = f"canary{secrets.token_hex(12)}"
        (self.sent if is_sent else self.kept_back).append(core)
        return f'The "é" {core} ☃.'

    def token(self, text: str) -> str:
        """Note a token."""
        self.tokens.append(text)
        return text


@dataclass
class Run:
    """All processes, and what was gathered on the way."""

    installation: Installation
    canaries: Canaries
    receiver: OtlpReceiver
    children: list[Child]
    bus: Path
    postgres_log: Path
    clickhouse: ClickhouseDatabase
    dead_origin: str
    """nobody listens there"""
    sinks: Sinks = field(default_factory=Sinks)
    heard: list[bytes] = field(default_factory=list)
    client: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(trust_env=False, timeout=DEADLINE))

    @property
    def gateway(self) -> str:
        return f"{self.installation.gateways[0].url}/cartesia"

    async def ask(self, request: httpx.Request, place: str = "answers") -> httpx.Response | None:
        """Send a request and keep the whole answer; None if the connection ended instead."""
        try:
            answer = await self.client.send(request)
        except httpx.TransportError:
            return None
        self.sinks.add(place, str(answer.headers.raw), answer.content)
        return answer


@pytest.fixture
def run(postgres: Postgres, migrated_template: str, clickhouse_database: ClickhouseDatabase, tmp_path: Path) -> Iterator[Run]:
    seeds = nats_seeds()
    address = ClickHouse(
        clickhouse_database.url, clickhouse_database.name, clickhouse_database.user, clickhouse_database.password
    )
    migrate(address)
    debug = {"GLOTTIS_LOG_LEVEL": "debug"}
    with ExitStack() as stack:
        folder = stack.enter_context(service_folder("canary-nats"))
        server, _ = stack.enter_context(nats_server(folder, {"GLOTTIS": seeds}))
        receiver, endpoint = stack.enter_context(http_receiver())
        account = NatsAccount("GLOTTIS", server.url, seeds)
        allowed, dead = endpoint.removesuffix("/v1/traces"), f"http://127.0.0.1:{free_port()}"
        installation = stack.enter_context(installed(postgres, migrated_template, account, 1, debug, (dead,), **debug))
        clickhouse = {
            "GLOTTIS_CLICKHOUSE_URL": f"{address.url}/{address.database}",
            "GLOTTIS_CLICKHOUSE_USER": address.user,
            "GLOTTIS_CLICKHOUSE_PASSWORD_FILE": str(clickhouse_database.password_file),
        }
        workers = [
            stack.enter_context(_worker(name, seeds[name], account, tmp_path, {**debug, **clickhouse, **more}))
            for name, more in (
                ("aggregator", {}),
                ("exporter", _exporter(tmp_path, endpoint, allowed, installation)),
            )
        ]
        children = [installation.control_plane, *(one.child for one in installation.gateways), *workers]
        yield Run(
            installation,
            Canaries(),
            receiver,
            children,
            folder,
            postgres.home.parent / "postgres.log",
            clickhouse_database,
            dead,
        )


def _exporter(folder: Path, endpoint: str, allowed: str, installation: Installation) -> dict[str, str]:
    """Return the variables of an exporter whose operator sends every workspace's spans to the receiver."""
    targets, key = folder / "targets.yaml", folder / "fleet.key"
    targets.write_text(json.dumps([{"id": "t1", "name": "receiver", "endpoint": endpoint, "protocol": "http/protobuf"}]))
    key.write_bytes(base64.b64encode(installation.fleet.private.reveal()))
    return {
        "GLOTTIS_EXPORTER_DRAIN_SECONDS": "1",
        "GLOTTIS_EXPORTER_TARGETS_FILE": str(targets),
        "GLOTTIS_FLEET_KEY_FILE": str(key),
        "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": allowed,
    }


@contextlib.contextmanager
def _worker(name: str, seed: Secret, account: NatsAccount, folder: Path, variables: dict[str, str]) -> Iterator[Child]:
    seed_file = folder / f"{name}.seed"
    seed_file.write_bytes(seed.reveal())
    environment = {
        "GLOTTIS_NATS_URL": account.url,
        "GLOTTIS_NATS_SEED_FILE": str(seed_file),
        f"GLOTTIS_{name.upper()}_LISTEN": f"127.0.0.1:{free_port()}",
        **variables,
    }
    with Child(service_command(name, environment, folder), folder / f"{name}.log") as child:
        yield child


# ---- the provider's bad manners


async def _leaks_on_a_socket(double: SocketsDouble, socket: Socket) -> None:
    """Answer each text with an error that repeats the credential, then close with it."""
    credential = (socket.one("Authorization") or "").removeprefix("Bearer ")
    await socket.message()
    await socket.say(type="error", done=True, status_code=401, error=f"Invalid key {credential}", context_id="c1")
    await socket.close(1008, f"bad key {credential}"[:120])


async def _repeats_the_text(double: CartesiaDouble, connection: Connection, request: Received) -> bool:
    await connection.answer("500 Internal Server Error", "Content-Type: application/json", body=request.body)
    return True


# ---- surfaces


def _speech(text: str, model: str = "sonic-3") -> dict[str, Any]:
    return {
        "model_id": model,
        "transcript": text,
        "voice": {"mode": "id", "id": "v1"},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
    }


SLOTS = ("authorization", "x-api-key", "access_token", "api_key")


def _presented(slot: str, token: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return headers and query parameters that carry the token."""
    if slot == "authorization":
        return {"Authorization": f"Bearer {token}"}, {}
    return ({"X-API-Key": token}, {}) if slot == "x-api-key" else ({}, {slot: token})


async def _set_up(run: Run) -> None:
    installation, canaries = run.installation, run.canaries
    installation.provider.http.scripts["repeats"] = _repeats_the_text
    installation.provider.sockets.scripts["leaks"] = _leaks_on_a_socket
    installation.provider.sockets.answers["refuses"] = (
        b"HTTP/1.1 401 Unauthorized\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\nbad key %b"
        % (8 + len(canaries.credential), canaries.credential.encode())
    )
    canaries.token(installation.token)
    await installation.call("POST", "/service-accounts", {"name": "agent"})
    for name, model, credential, origin in (
        ("up", "sonic-3", canaries.credential, installation.provider.origin),
        ("down", "sonic-down", canaries.down_credential, run.dead_origin),
    ):
        body = {"name": name, "provider": "cartesia", "origin": origin, "credential": credential}
        await installation.call("POST", "/accounts", body)
        await installation.call("POST", f"/accounts/{name}/models", {"name": model, "type": "text-to-speech"})
        await installation.call("POST", f"/accounts/{name}/collaborators", {"subject": "service_account:agent"})
    await installation.call("POST", "/accounts/up/models", {"name": "ink-whisper", "type": "speech-to-text"})
    await _patch(installation, "/workspace", defaults={"cartesia": "up"})
    # What the API refuses is quoted by neither its answer nor its log.
    refused = {"name": "bad", "provider": "cartesia", "origin": "ftp://x", "credential": canaries.refused_credential, "no": 1}
    async with installation.client() as client:
        answer = await client.post("/accounts", json=refused)
        assert answer.status_code in (400, 422), answer.text
        run.sinks.add("answers", answer.content)
        target = {"name": "otlp", "endpoint": "https://otlp.example.com/v1/traces"}
        answer = await client.post("/export-targets", json={**target, "secret_headers": {"x-key": canaries.export_header}})
        assert answer.is_success, answer.text
        run.sinks.add("answers", answer.content)
        wrong = canaries.token(_forged())
        answer = await client.get("/tokens", headers={"Authorization": f"Bearer {wrong}"})
        assert answer.status_code == 401
        run.sinks.add("answers", answer.content)


async def _patch(installation: Installation, path: str, **change: Any) -> None:
    async with installation.client() as client:
        answer = await client.patch(path, json=change, headers={"If-Match": "*"})
    assert answer.is_success, answer.text


def _forged() -> str:
    """Return what looks like a token and is none of anybody's."""
    part = base64.urlsafe_b64encode(b'{"alg":"ES256","typ":"glottis+jwt"}').rstrip(b"=").decode()
    claims = {"iss": f"https://{secrets.token_hex(8)}", "aud": "glottis", "sub": secrets.token_hex(8)}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"{part}.{payload}.{secrets.token_urlsafe(64)}"


async def _token(run: Run, **narrowing: Any) -> str:
    headers = {"Authorization": f"Bearer {run.installation.token}", "Idempotency-Key": secrets.token_hex(8)}
    body = {"principal": "service_account:agent", **narrowing}
    answer = await run.client.post(f"{run.installation.url}/api/v1/tokens", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return run.canaries.token(answer.json()["token"])


async def _over_http(run: Run) -> None:
    """Each slot with each fate, on byte answers; then the other kinds of request."""
    canaries = run.canaries
    fates = (
        ("", "sonic-3", True, 200),
        ("500", "sonic-3", True, 500),
        ("leak", "sonic-3", True, 401),
        ("leak-in-pieces", "sonic-3", True, 403),
        ("close", "sonic-3", True, 502),
        ("not-http", "sonic-3", True, 502),
        ("redirect-away", "sonic-3", True, 502),
        ("", "sonic-down", False, 502),
        ("", "sonic-nobodys", False, 403),
    )
    for slot in SLOTS:
        for script, model, is_sent, status in fates:
            headers, query = _presented(slot, await _token(run))
            text = canaries.text(is_sent=is_sent)
            answer = await run.ask(
                httpx.Request(
                    "POST",
                    f"{run.gateway}/tts/bytes",
                    params=query,
                    headers=headers | {"X-Double": script},
                    json=_speech(text, model),
                )
            )
            assert answer is not None
            assert answer.status_code == status, (slot, script, answer.text)
        for wrong in (_forged(), f"garbage-{secrets.token_hex(16)}", f"{await _token(run)}x"):
            headers, query = _presented(slot, canaries.token(wrong))
            text = canaries.text(is_sent=False)
            answer = await run.ask(
                httpx.Request("POST", f"{run.gateway}/tts/bytes", params=query, headers=headers, json=_speech(text))
            )
            assert answer is not None
            assert answer.status_code == 401
        # Paths that nobody has: under a mount, and outside.
        headers, query = _presented(slot, await _token(run))
        for url in (f"{run.gateway}/nothing/at/all", run.installation.gateways[0].url + "/nothing"):
            assert await run.ask(httpx.Request("GET", url, params=query, headers=headers)) is not None
    headers, _ = _presented("x-api-key", await _token(run))
    assert await run.ask(httpx.Request("POST", f"{run.gateway}/tts/sse", headers=headers, json=_speech(canaries.text())))
    for fate in ("", "leak"):
        form = (
            f'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nink-whisper\r\n'
            f'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n{canaries.text()}\r\n--b--\r\n'
        ).encode()
        head = headers | {"Content-Type": FORM, "X-Double": fate}
        assert await run.ask(httpx.Request("POST", f"{run.gateway}/stt", headers=head, content=form)) is not None
    # A body that cannot be judged, and one that the provider throws back with a 500 (answers of its own are not ours to mask).
    twice = json.dumps(_speech(canaries.text(is_sent=False)))[:-1] + ',"model_id":"sonic-3"}'
    answer = await run.ask(
        httpx.Request("POST", f"{run.gateway}/tts/bytes", headers=headers | {"Content-Type": "application/json"}, content=twice)
    )
    assert answer is not None
    assert answer.status_code == 400
    repeats = headers | {"X-Double": "repeats"}
    request = httpx.Request("POST", f"{run.gateway}/tts/bytes", headers=repeats, json=_speech(canaries.text()))
    assert await run.ask(request, "echoes of texts") is not None
    answer = await run.ask(
        httpx.Request("POST", f"{run.gateway}/access-token", headers=headers, json={"grants": {"tts": True}}), "minting"
    )
    assert answer is not None
    child = canaries.token(answer.json()["token"])
    request = httpx.Request("POST", f"{run.gateway}/tts/bytes", headers={"X-API-Key": child}, json=_speech(canaries.text()))
    answer = await run.ask(request)
    assert answer is not None
    assert answer.status_code == 200


async def _broken_requests(run: Run) -> None:
    """Requests that no parser takes, each with a token in it."""
    address = run.installation.gateways[0].url.removeprefix("http://").split(":")
    for make in (
        "GET /cartesia/voices?access_token={} HTTP/9.9\r\n\r\n",
        "GET /cartesia/voices?access_token={} HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /cartesia/voices HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {}\r\nConnection: close\r\n\r\n",
        "GET /cartesia/voices HTTP/1.1\r\nHost: a\r\nX-API-Key: {}\r\nX-Odd\x01: 1\r\n\r\n",
        "GET /cartesia/voices?api_key={}&api_key=other HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "GET /livez?access_token={} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(make.format(await _token(run)).encode("latin-1"))
        async with asyncio.timeout(DEADLINE):
            run.sinks.add("answers", await reader.read(-1))
        writer.close()


async def _over_sockets(run: Run) -> None:
    canaries = run.canaries
    base = run.gateway.replace("http", "ws")

    @asynccontextmanager
    async def opened(path: str, token: str, slot: str, script: str = "") -> AsyncIterator[websockets.ClientConnection]:
        headers, query = _presented(slot, token) if slot != "subprotocol" else ({}, {})
        protocols: Any = ["glottis.v1", f"glottis.auth.{token}"] if slot == "subprotocol" else None
        url = httpx.URL(base + path, params=query) if query else httpx.URL(base + path)
        options = {"additional_headers": headers | {"X-Double": script}, "subprotocols": protocols, "proxy": None}
        async with websockets.connect(str(url), **options) as socket:
            assert socket.response is not None
            run.sinks.add("answers", str(list(socket.response.headers.raw_items())))
            yield socket

    for slot in (*SLOTS, "subprotocol"):
        async with opened("/tts/websocket", await _token(run), slot) as socket:
            await socket.send(json.dumps(_speech(canaries.text()) | {"context_id": "c1"}))
            await _until(socket, "done")
            await socket.send(json.dumps(_speech(canaries.text(is_sent=False), "sonic-nobodys") | {"context_id": "c2"}))
            run.sinks.add("answers", await _until(socket, "error"))
        for script in ("leaks", "refuses"):
            with contextlib.suppress(websockets.InvalidStatus):
                async with opened("/tts/websocket", await _token(run), slot, script) as socket:
                    await socket.send(json.dumps(_speech(canaries.text()) | {"context_id": "c1"}))
                    with contextlib.suppress(websockets.ConnectionClosed):
                        while True:
                            run.sinks.add("answers", await socket.recv())
                    run.sinks.add("answers", socket.close_reason or "")
        for wrong in (_forged(), f"{await _token(run)}x"):
            with pytest.raises(websockets.InvalidStatus) as refused:
                async with opened("/tts/websocket", canaries.token(wrong), slot):
                    pass
            run.sinks.add("answers", refused.value.response.body or b"")


async def _until(socket: websockets.ClientConnection, kind: str) -> str:
    async with asyncio.timeout(DEADLINE):
        while json.loads(message := str(await socket.recv()))["type"] != kind:
            pass
    return message


# ---- sinks


async def _gather(run: Run) -> None:
    sinks, installation = run.sinks, run.installation
    for child in run.children:
        sinks.add("logs", child.output)
    sinks.add("logs", run.postgres_log.read_bytes(), (run.bus / "nats.log").read_bytes())
    sinks.add("messages of the bus", *run.heard)
    sinks.add_files("files of the bus", run.bus)
    for part in ("spool", "state"):
        sinks.add_files({"spool": "spool", "state": "last-known-good"}[part], installation.folder / "pod-0" / part)
    with run.receiver._lock:
        sinks.add("exported spans", repr(run.receiver.received.spans))
    async with httpx.AsyncClient(trust_env=False) as client:
        for url in (installation.gateways[0].admin_url, installation.url):
            sinks.add("metrics", (await client.get(url + "/metrics")).content)
    with contextlib.closing(run.clickhouse.client()) as clickhouse:
        for (table,) in clickhouse.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_rows:
            sinks.add("ClickHouse", repr(clickhouse.query(f"SELECT * FROM `{table}`").result_rows))
    connection = await asyncpg.connect(installation.database.superuser_url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in tables:
            rows = await connection.fetch(f'SELECT t::text FROM "{table}" t')
            sinks.add("Postgres", *(str(row[0]) for row in rows))
    finally:
        await connection.close()
    sinks.add("processes", *_processes())


def _processes() -> list[bytes]:
    """Return environment and command line of every process that can be looked into."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += [(process / "environ").read_bytes(), (process / "cmdline").read_bytes()]
    return found


async def _settled(run: Run, exchanges: int) -> None:
    """Wait until spans of the last exchanges are exported and stored, so that the sinks hold what they will ever hold."""
    async with asyncio.timeout(DEADLINE):
        while True:
            with contextlib.closing(run.clickhouse.client()) as clickhouse:
                rows = clickhouse.query("SELECT count(DISTINCT trace_id) FROM spans").result_rows
            if int(rows[0][0]) >= exchanges and len({span.trace_id for _, span in run.receiver.received.spans}) >= exchanges:
                return
            await asyncio.sleep(0.1)


async def test_no_canary_turns_up_where_it_does_not_belong(run: Run) -> None:
    canaries, sinks, provider = run.canaries, run.sinks, run.installation.provider
    admin: nats.aio.client.Client = await run.installation.nats.connect()

    async def hear(message: Any) -> None:  # Any: nats-py's Msg
        run.heard.append(str(message.headers).encode() + message.data)

    await admin.subscribe(">", cb=hear)
    await _set_up(run)
    token = await _token(run)
    async with asyncio.timeout(DEADLINE):
        request = httpx.Request("POST", f"{run.gateway}/tts/bytes", headers={"X-API-Key": token}, json=_speech(canaries.text()))
        while (answer := await run.ask(request)) is None or answer.status_code != 200:
            await asyncio.sleep(0.05)
    await _over_http(run)
    await _broken_requests(run)
    await _over_sockets(run)
    await _settled(run, 40)
    await _gather(run)
    await admin.close()
    await run.client.aclose()

    received = Sinks()
    received.add("provider", provider.received())
    leaks = []
    for number, text in enumerate(canaries.tokens):
        for part in text.split(".")[1:] or [text]:  # payload and signature: each is the token's alone
            leaks += [f"token {number}: {found}" for found in sinks.holding(part, set(sinks.places) - {"minting"})]
            leaks += [f"token {number}: {found}" for found in received.holding(part)]
    secrets_kept = (canaries.credential, canaries.down_credential, canaries.refused_credential, canaries.export_header)
    for credential in secrets_kept:
        leaks += [f"credential: {found}" for found in sinks.holding(credential)]
    for text in canaries.sent:
        leaks += [f"text: {found}" for found in sinks.holding(text, set(sinks.places) - {"answers", "echoes of texts"})]
    for text in canaries.kept_back:
        leaks += [f"refused text: {found}" for found in sinks.holding(text)]
        leaks += [f"refused text: {found}" for found in received.holding(text)]
    assert leaks == []
    # The search had something to find, and every sink something to be searched in.
    assert received.holding(canaries.credential) == ["provider: in clear"]
    assert [text for text in canaries.sent if not received.holding(text)] == []
    assert {place for place, pieces in sinks.places.items() if not any(pieces)} == set()
    assert len(canaries.tokens) > 60
