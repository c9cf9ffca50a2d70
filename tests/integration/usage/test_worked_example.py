"""docs/usage.md's worked example: the page's own numbers, followed from a caller's socket to the invoice line.

A real gateway process, a real bus, a real aggregator, the reports and the command line's own table: nothing is given to a
step but what the step before it made.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import cartesia
import msgspec

from contracts.events import UsageEvent
from contracts.prices import Price
from contracts.secret import Secret
from contracts.snapshot import Account, Grant, Issuer, Model, Principal, Snapshot, Team, Workspace
from control_plane.clickhouse.connection import ClickHouse
from control_plane.reports.question import question
from control_plane.reports.service import Reports
from glottis.commands.usage import table
from tests.doubles.cartesia_websocket import Socket, SocketsDouble, sockets_double
from tests.integration.usage.conftest import Tables
from tests.kit.configuration import ControlPlane, usage_on_stream
from tests.kit.gateway import CREDENTIAL, gateway_process
from tests.kit.identities import IDP, idp_token, jwks, signing_key
from tests.kit.services import NatsAccount
from tests.kit.usage import TestBus, Worker, all_usage_acknowledged, running, until

PAGE = (Path(__file__).parents[3] / "docs" / "usage.md").read_text(encoding="utf-8")
SPOKEN_MS = 2840


def workspace(origin: str, control_plane: ControlPlane) -> Snapshot:
    """The page's workspace: Ann of team Voice, and the account cartesia-eu with sonic-3."""
    account = Account(id="cartesia-eu", workspace="acme", name="Cartesia EU", provider="cartesia", origin=origin)
    return Snapshot(
        revision=1,
        created_at_ms=0,
        workspaces=(Workspace(id="acme", name="Acme"),),
        issuers=(Issuer(id="idp", workspace="acme", issuer=IDP, audiences=("glottis",), jwks=jwks(signing_key())),),
        teams=(Team(id="voice", workspace="acme", name="Voice"),),
        principals=(
            Principal(id="ann", workspace="acme", kind="user", name="Ann", teams=("voice",), issuer_id="idp", subject="ann"),
        ),
        accounts=(control_plane.with_credential(account, Secret(CREDENTIAL)),),
        models=(Model(id="m1", workspace="acme", account="cartesia-eu", name="sonic-3", type="text-to-speech"),),
        grants=(Grant(id="g1", workspace="acme", account="cartesia-eu", subject="team:voice"),),
    )


async def speak_for_2840_ms(_: SocketsDouble, socket: Socket) -> None:
    """Answer the first text with so much audio, in four pieces."""
    message = await socket.message()
    assert message is not None
    context = json.loads(message.payload)["context_id"]
    for _ in range(4):
        data = msgspec.json.encode(bytes(SPOKEN_MS * 16 * 2 // 4)).decode().strip('"')
        await socket.say(type="chunk", data=data, done=False, status_code=206, context_id=context)
    await asyncio.sleep(0)
    await socket.say(type="done", done=True, status_code=200, context_id=context)
    while await socket.message() is not None:
        pass


def prices() -> tuple[Price, Price]:
    """The two entries of the page."""
    found = [
        (entry["model"], entry["price"], entry.get("account", ""), entry["effective"])
        for line in re.findall(r"^  - \{(.*)\}$", PAGE, re.MULTILINE)
        if "unit" in (entry := dict(part.split(": ") for part in line.split(", ")))
    ]
    assert [price for _, price, _, _ in found] == ["0.000038", "0.000031"]
    made = [
        Price(
            workspace="acme",
            provider="cartesia",
            account=account,
            model=model,
            unit="characters",
            price=amount,
            effective_ms=int(datetime.fromisoformat(since).replace(tzinfo=UTC).timestamp() * 1000),
        )
        for model, amount, account, since in found
    ]
    return made[0], made[1]


async def test_the_worked_example_of_the_page(
    tables: Tables,
    aggregator: Callable[[], Worker],
    clickhouse_address: ClickHouse,
    nats_account: NatsAccount,
    tmp_path: Path,
) -> None:
    control_plane = ControlPlane(await nats_account.connect())
    await control_plane.prepare()
    bus = TestBus(control_plane.client)
    await bus.publish_prices(12, *prices())
    message = json.loads(re.search(r"^\{\"model_id\".*$", PAGE, re.MULTILINE)[0])  # type: ignore[index]
    raw = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 16_000}
    async with sockets_double() as provider:
        provider.scripts["synthesize"] = speak_for_2840_ms
        await control_plane.publish(workspace(provider.origin, control_plane))
        seed = tmp_path / "gateway.nk"
        seed.write_bytes(nats_account.seeds["gateway"].reveal())
        variables = control_plane.key_files(tmp_path) | {
            "GLOTTIS_NATS_URL": nats_account.url,
            "GLOTTIS_NATS_SEED_FILE": str(seed),
            "GLOTTIS_GATEWAY_SPOOL_DIR": str(tmp_path / "spool"),
            "GLOTTIS_GATEWAY_STATE_DIR": str(tmp_path / "state"),
            "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": provider.origin,
        }
        with gateway_process(tmp_path, variables) as gateway:
            await gateway.child.until(gateway.is_ready)
            now = int(time.time())
            key = idp_token(sub="ann", iat=now - 60, exp=now + 600)
            client = cartesia.AsyncCartesia(
                base_url=f"{gateway.url}/cartesia",
                websocket_base_url=gateway.url.replace("http", "ws") + "/cartesia",
                api_key=key,
                max_retries=0,
            )
            async with client, client.tts.websocket_connect() as socket:
                await socket.send({**message, "output_format": raw})
                while (await socket.recv()).type != "done":
                    pass
            events: list[UsageEvent] = []

            async def are_published() -> bool:
                events[:] = {event.id: event for event in await usage_on_stream(bus.client)}.values()
                return any(event.is_final for event in events)

            await until(are_published, "the usage of the context")
            assert await asyncio.to_thread(gateway.child.stop) == 0
    assert message["transcript"] == 'Your order has shipped. <break time="1s"/>Anything else?'
    assert {event.key.partition(".")[2] for event in events} == {"1"}
    said = {unit: sum(event.units.get(unit, 0) for event in events) for unit in ("characters", "requests", "audio_out_ms")}
    assert [f"`{unit}` {quantity}" in PAGE for unit, quantity in said.items()] == [True, True, True]
    assert said == events[-1].totals
    assert b"order" not in b"".join(msgspec.msgpack.encode(event) for event in events)

    async with running(aggregator()):
        await all_usage_acknowledged(bus)
    assert tables.rows("SELECT sum(costs['characters']), any(price_revision) FROM usage_events FINAL") == [
        (Decimal("0.001209"), 12)
    ]
    assert "**0.001209 USD**" in PAGE
    reports = Reports(clickhouse_address)
    asked_at = datetime.fromtimestamp(time.time() + 60, UTC)

    async def report(*by: str) -> tuple[list[str], str]:
        asked = question("acme", by=by, bucket="", start="", end="", filters={}, now=asked_at)
        answer = await reports.usage(asked)
        return table(answer.as_json()), answer.as_csv()

    lines, _ = await report("user", "model")
    _, csv_text = await report("team", "account", "model")
    await reports.close()
    await bus.client.close()
    assert "\n".join(lines) in PAGE
    assert csv_text.replace("\r\n", "\n") in PAGE
