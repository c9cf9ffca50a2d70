"""Export targets: what the exporter reads of them, and what never leaves."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from nats.js.errors import KeyNotFoundError

from contracts import codec, sealing
from contracts.exports import ExportTargets, SecretHeaders
from contracts.subjects import CONFIG_BUCKET, EXPORTS_KEY
from tests.kit.control_plane import RunningControlPlane

TARGET = {
    "name": "backend",
    "endpoint": "https://otlp.example.com/v1/traces",
    "headers": {"x-tenant": "acme"},
    "secret_headers": {"authorization": "Bearer s3cret"},
}


async def published(running: RunningControlPlane, count: int) -> ExportTargets:
    """Return the targets as the exporter reads them, once there are so many."""
    client = await running.nats.connect("exporter")
    bucket = await client.jetstream().key_value(CONFIG_BUCKET)
    deadline = time.monotonic() + 10
    while True:
        with suppress(KeyNotFoundError):
            found = codec.decode((await bucket.get(EXPORTS_KEY)).value or b"", ExportTargets)
            if len(found.targets) == count:
                await client.close()
                return found
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_target_is_published_with_its_secret_headers_sealed(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        answer = await client.post("/export-targets", json=TARGET)
    assert answer.status_code == 201, answer.text
    assert "s3cret" not in answer.text
    (target,) = (await published(control_plane, 1)).targets
    assert (target.workspace, target.name, target.endpoint, target.headers) == (
        "acme",
        "backend",
        "https://otlp.example.com/v1/traces",
        {"x-tenant": "acme"},
    )
    assert target.sealed_headers is not None
    purpose = sealing.export_headers_purpose("acme", target.id, target.sealed_headers.version, target.endpoint)
    opened = codec.decode(control_plane.fleet.opened(target.sealed_headers, purpose), SecretHeaders)
    assert opened.headers == {"authorization": "Bearer s3cret"}


async def test_another_endpoint_drops_the_secret_headers(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await client.post("/export-targets", json=TARGET)
        body = {"endpoint": "https://other.example.com/v1/traces"}
        answer = await client.patch("/export-targets/backend", json=body, headers={"If-Match": "*"})
        assert answer.json()["has_secret_headers"] is False
        kept = await client.patch("/export-targets/backend", json={"timeout_seconds": 5}, headers={"If-Match": "*"})
        assert kept.json()["timeout_seconds"] == 5


async def test_a_target_inside_is_refused(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        answer = await client.post("/export-targets", json={**TARGET, "endpoint": "https://169.254.169.254/v1/traces"})
    assert (answer.status_code, answer.json()["reason"]) == (422, "origin_refused")


async def test_a_deleted_target_is_withdrawn(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await client.post("/export-targets", json=TARGET)
        await published(control_plane, 1)
        assert (await client.delete("/export-targets/backend")).status_code == 204
    assert (await published(control_plane, 0)).targets == ()
