"""The routes of reports: the real control plane over real databases, asked as `glottis usage` asks."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from contracts.prices import PriceBook
from control_plane.aggregator.pricing import PriceIndex
from control_plane.aggregator.rows import span_rows, usage_rows
from control_plane.aggregator.store import Store
from control_plane.clickhouse.connection import ClickHouse
from migrations.postgres import upgrade
from tests.kit.control_plane import (
    APPLICATION_ROLE,
    RunningControlPlane,
    bootstrap,
    make_settings,
    second_workspace,
    serving,
)
from tests.kit.processes import free_port
from tests.kit.services import NatsAccount, PostgresDatabase
from tests.kit.usage import NOW_MS, attribution, price, span_event, usage_event


@pytest_asyncio.fixture
async def api(
    postgres_database: PostgresDatabase, nats_account: NatsAccount, clickhouse_address: ClickHouse, tmp_path: Path
) -> AsyncIterator[RunningControlPlane]:
    """A control plane with ClickHouse, in which `acme` and `other` spoke 10 characters and `acme` listened unpriced."""
    await upgrade(postgres_database.owner_url, APPLICATION_ROLE)
    port = free_port()
    settings, fleet = make_settings(tmp_path, postgres_database, nats_account, port)
    settings = replace(settings, clickhouse=clickhouse_address)
    store = Store(clickhouse_address)
    prices = PriceIndex(PriceBook(revision=1, prices=(price("characters", "0.001"),)))
    events = [
        usage_event("r1"),
        usage_event("r2", units={"audio_in_ms": 1500}, to=attribution(model="ink-2", operation="stt")),
        usage_event("r3", to=attribution(workspace="other")),
    ]
    batch = usage_rows(events, prices)
    store.insert_usage(batch.rows)
    store.recompute(batch.touched)
    store.insert_spans([row for span in (span_event("r1"), span_event("r3", workspace="other")) for row in span_rows(span)])
    store.close()
    async with serving(settings) as app:
        url = f"http://127.0.0.1:{port}"
        token = await bootstrap(url)
        yield RunningControlPlane(url, token, "acme", settings, fleet, postgres_database, nats_account, app)


async def get(running: RunningControlPlane, path: str, token: str | None = None) -> tuple[int, Any]:
    """Return status and JSON. Any: it is JSON."""
    async with running.client(token) as client:
        answer = await client.get(path)
        return answer.status_code, answer.json()


async def test_usage_by_user_and_model(api: RunningControlPlane) -> None:
    status, report = await get(api, "/usage?by=user,model")
    assert status == 200
    assert [(row["user_name"], row["model"], row["units"], row["cost"], row["unpriced"]) for row in report["rows"]] == [
        ("Ann", "ink-2", {"audio_in_ms": 1500}, {}, {"audio_in_ms": 1500}),
        ("Ann", "kokoro-82m", {"characters": 10}, {"USD": "0.01"}, {}),
    ]
    assert report["total"]["cost"] == {"USD": "0.01"}


async def test_csv_comes_as_a_file(api: RunningControlPlane) -> None:
    async with api.client() as client:
        answer = await client.get("/usage?by=model&model=ink-2&format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith('attachment; filename="usage-')
    assert answer.text == ("model,exchanges,audio_in_ms,unpriced_audio_in_ms\r\nink-2,1,1500,1500\r\n")


async def test_a_workspace_is_told_nothing_of_another(api: RunningControlPlane) -> None:
    other = await second_workspace(api, "third")
    assert (await get(other, "/usage?by=user"))[1]["rows"] == []
    assert (await get(other, "/spans"))[1]["items"] == []
    assert {span["request_id"] for span in (await get(api, "/spans"))[1]["items"]} == {"r1"}
    status, problem = await get(other, "/usage?workspace=acme")
    assert (status, problem["reason"]) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/usage?by=colour", "by"),
        ("/usage?from=yesterday", "from"),
        ("/usage?bucket=week", "bucket"),
        ("/usage?colour=red", "colour"),
        ("/usage?format=xml", "format"),
        ("/spans?limit=0", "limit"),
        ("/spans?attribute.=x", "attribute."),
        ("/spans/summary?bucket=day", "bucket"),
    ],
)
async def test_a_question_that_cannot_be_asked_is_refused_by_its_parameter(
    api: RunningControlPlane, path: str, field: str
) -> None:
    status, problem = await get(api, path)
    assert (status, problem["reason"], problem["errors"][0]["field"]) == (422, "invalid_request", field)


async def test_nobody_asks_without_a_token(api: RunningControlPlane) -> None:
    for path in ("/usage", "/spans", "/spans/summary", "/usage/jobs", "/usage/jobs/x"):
        status, problem = await get(api, path, token="")
        assert (status, problem["reason"]) == (401, "unauthenticated")


async def test_a_job_is_asked_for_audited_and_shown(api: RunningControlPlane) -> None:
    async with api.client() as client:
        asked = await client.post("/usage/jobs", json={"kind": "reprice", "from": "2026-11-01T00:00:00Z", "to": "2026-11-02"})
        assert asked.status_code == 202, asked.text
        job = asked.json()
        assert (job["kind"], job["state"], job["from"]) == ("reprice", "asked", "2026-11-01T00:00:00.000Z")
        assert (await client.get(f"/usage/jobs/{job['id']}")).json() == job
        erasure = (await client.post("/usage/jobs", json={"kind": "erase", "principal": "ann"})).json()
        assert "backups" in erasure["not_erased"]
        assert [one["id"] for one in (await client.get("/usage/jobs")).json()["items"]] == [erasure["id"], job["id"]]
        entries = (await client.get("/audit?kind=usage_job")).json()["items"]
        assert [(entry["target"], entry["target_name"]) for entry in entries] == [
            (erasure["id"], "erase"),
            (job["id"], "reprice"),
        ]
    other = await second_workspace(api, "third")
    assert (await get(other, f"/usage/jobs/{job['id']}"))[0] == 404
    assert (await get(other, "/usage/jobs"))[1]["items"] == []


async def test_a_job_that_is_asked_for_again_with_its_key_is_the_same_job(api: RunningControlPlane) -> None:
    body, key = {"kind": "erase", "principal": "ann"}, {"Idempotency-Key": "erase-ann"}
    async with api.client() as client:
        first = await client.post("/usage/jobs", json=body, headers=key)
        again = await client.post("/usage/jobs", json=body, headers=key)
        assert (first.status_code, again.status_code, again.json()) == (202, 202, first.json())
        assert again.headers["idempotent-replay"] == "true"
        assert [one["id"] for one in (await client.get("/usage/jobs")).json()["items"]] == [first.json()["id"]]


async def test_an_erasure_takes_an_id_and_tells_that_of_a_name(api: RunningControlPlane) -> None:
    async with api.client() as client:
        user = (await client.post("/users", json={"name": "ben"})).json()["id"]
        named = await client.post("/usage/jobs", json={"kind": "erase", "principal": "ben"})
        taken = await client.post("/usage/jobs", json={"kind": "erase", "principal": user})
    assert named.status_code == 422
    sentence = f"'ben' is a name, which may be given again. Write the id: {user}."
    assert named.json()["errors"] == [{"field": "principal", "sentence": sentence}]
    assert (taken.status_code, taken.json()["principal"]) == (202, user)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "erase"},
        {"kind": "erase", "principal": "ann", "from": "2026-11-01T00:00:00Z"},
        {"kind": "reprice"},
        {"kind": "reprice", "from": "2026-11-02T00:00:00Z", "to": "2026-11-01T00:00:00Z"},
        {"kind": "reprice", "from": "2020-01-01T00:00:00Z"},
        {"kind": "reprice", "from": "2026-11-01T00:00:00Z", "principal": "ann"},
        {"kind": "delete", "principal": "ann"},
    ],
)
async def test_a_job_that_makes_no_sense_is_refused(api: RunningControlPlane, body: dict[str, str]) -> None:
    async with api.client() as client:
        answer = await client.post("/usage/jobs", json=body)
        assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_request")
        assert (await client.get("/usage/jobs")).json()["items"] == []


async def test_without_clickhouse_reports_are_unavailable_and_the_rest_goes_on(control_plane: RunningControlPlane) -> None:
    status, problem = await get(control_plane, "/usage")
    assert (status, problem["reason"]) == (503, "reports_unavailable")
    assert (await get(control_plane, "/audit"))[0] == 200


async def test_the_command_prints_a_table_or_json_or_csv(api: RunningControlPlane) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[3])),
        "PYTHONIOENCODING": "utf-8",
        "GLOTTIS_CONTROL_PLANE_URL": api.url,
        "GLOTTIS_TOKEN": api.token,
    }

    def printed(*arguments: str) -> str:
        command = [sys.executable, "-m", "glottis", "usage", *arguments]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        return result.stdout

    assert await asyncio.to_thread(printed, "--by", "user,model") == (
        "user   model       exchanges  characters  audio in   USD          unpriced\n"
        "Ann    ink-2               1           0   1.500 s     –  1.500 s audio in\n"
        "Ann    kokoro-82m          1          10   0.000 s  0.01                 –\n"
        "total                      2          10   1.500 s  0.01  1.500 s audio in\n"
    )
    report = json.loads(await asyncio.to_thread(printed, "--by", "model", "--where", "model=ink-2", "--json"))
    assert report["rows"][0]["units"] == {"audio_in_ms": 1500}
    assert (await asyncio.to_thread(printed, "--by", "team", "--csv")).startswith("team,team_name,exchanges,")


async def test_reconcile_explains_where_a_providers_export_differs(
    api: RunningControlPlane, clickhouse_address: ClickHouse, tmp_path: Path
) -> None:
    days = [datetime.fromtimestamp(NOW_MS / 1000, UTC) - timedelta(days=days) for days in (4, 3, 2, 1)]
    store = Store(clickhouse_address)
    events = [
        usage_event(
            f"c{number}",
            at_ms=int(day.timestamp() * 1000),
            units={"characters": characters, "requests": 1},
            to=attribution(provider="cartesia", account="cartesia-eu", model=model),
        )
        for number, (day, model, characters) in enumerate(
            [(days[0], "sonic-3", 1000), (days[1], "sonic-3", 400), (days[2], "sonic-3", 600), (days[3], "sonic-3", 100)]
        )
    ]
    batch = usage_rows(events, PriceIndex(PriceBook(revision=1)))
    store.insert_usage(batch.rows)
    store.recompute(batch.touched)
    store.close()
    export = tmp_path / "usage-export.csv"
    named = [day.date().isoformat() for day in days]
    export.write_text(
        "Date,Capability,Model,Credits\n"
        f"{named[0]},tts,sonic-3,1500\n{named[1]},tts,sonic-3,600\n{named[2]},tts,sonic-3,900\n{named[3]},tts,sonic-3,131\n"
        f"{named[3]},tts,sonic-turbo,77\n"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[3])),
        "PYTHONIOENCODING": "utf-8",
        "GLOTTIS_CONTROL_PLANE_URL": api.url,
        "GLOTTIS_TOKEN": api.token,
    }

    def printed() -> str:
        command = [sys.executable, "-m", "glottis", "reconcile", str(export)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout

    assert (await asyncio.to_thread(printed)).splitlines() == [
        "0 of 5 days and models are the same.",
        "day         model        ours   theirs  difference  cause",
        f"{named[0]}  sonic-3      1,000  1,500   +500        rate",
        f"{named[1]}  sonic-3      400    600     +200        rate",
        f"{named[2]}  sonic-3      600    900     +300        rate",
        f"{named[3]}  sonic-3      100    131     +31         units",
        f"{named[3]}  sonic-turbo  0      77      +77         coverage",
        "coverage: +77 – only one side has it: calls past the gateway, or an account or time that the export leaves out.",
        "rate: +1,000 – theirs is 1.5 times ours (the rate of Pro Voice Clones): put this rate into the price book.",
        "units: +31 – both have it and count differently: tags, pre-processing, cancelled contexts, or usage not yet reported.",
    ]
