"""The audit log: every change with who, what, before and after; and that a tampered one is noticed."""

from __future__ import annotations

import asyncio
import json

import asyncpg

from tests.kit.control_plane import RunningControlPlane


async def test_a_change_is_logged_with_who_what_before_and_after(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await client.post("/teams", json={"name": "voice"})
        changed = await client.patch("/teams/voice", json={"name": "sound"}, headers={"If-Match": "*"})
        entry = (await client.get("/audit")).json()["items"][0]
    assert {name: entry[name] for name in ("actor_name", "action", "kind", "target", "target_name", "before", "after")} == {
        "actor_name": "ada",
        "action": "update",
        "kind": "team",
        "target": changed.json()["id"],
        "target_name": "sound",
        "before": {"name": "voice"},
        "after": {"name": "sound"},
    }
    assert entry["request_id"] == changed.headers["x-glottis-request-id"]


async def test_a_change_that_changes_nothing_is_not_logged(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await client.post("/teams", json={"name": "voice"})
        before = (await client.get("/audit")).json()["items"][0]["seq"]
        answer = await client.patch("/teams/voice", json={"name": "voice"}, headers={"If-Match": "*"})
        after = (await client.get("/audit")).json()["items"][0]["seq"]
    assert (answer.headers["etag"], after) == ('"v1"', before)


async def test_the_log_is_whole_and_its_export_has_every_entry(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        for number in range(5):
            await client.post("/teams", json={"name": f"t{number}"})
        lines = [json.loads(line) for line in (await client.get("/audit/export")).text.splitlines()]
        verified = (await client.get("/audit/verification")).json()
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert (verified["is_whole"], verified["entries"], verified["head"]) == (True, len(lines), lines[-1]["hash"])


async def test_a_changed_entry_and_a_cut_off_end_are_noticed(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        for number in range(3):
            await client.post("/teams", json={"name": f"t{number}"})
        total = (await client.get("/audit/verification")).json()["entries"]
        # Only somebody with the server's own rights gets past the triggers.
        connection = await asyncpg.connect(control_plane.database.superuser_url)
        try:
            await connection.execute("ALTER TABLE audit DISABLE TRIGGER ALL")
            await connection.execute("DELETE FROM audit WHERE seq = $1", total)
            cut = (await client.get("/audit/verification")).json()
            await connection.execute("UPDATE audit SET actor_name = 'mallory' WHERE seq = 2")
            forged = (await client.get("/audit/verification")).json()
        finally:
            await connection.close()
    assert (cut["is_whole"], cut["broken_at"]) == (False, total)
    assert (forged["is_whole"], forged["broken_at"]) == (False, 2)


async def test_changes_at_the_same_time_form_one_chain(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await asyncio.gather(*(client.post("/teams", json={"name": f"t{number}"}) for number in range(12)))
        verified = (await client.get("/audit/verification")).json()
    assert verified["is_whole"]
