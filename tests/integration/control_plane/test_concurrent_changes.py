"""Two changes of one thing at one moment: the second waits, and is judged by what the first left.

The first is an open transaction of the application's role, as another replica has one before its commit.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx

from contracts import sealing
from tests.kit.control_plane import RunningControlPlane, watching


class OtherReplica:
    """A change that another replica has made and not yet committed."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._transaction = connection.transaction()

    @classmethod
    async def changing(cls, running: RunningControlPlane, *statements: str) -> OtherReplica:
        replica = cls(await asyncpg.connect(running.database.url))
        await replica._transaction.start()
        await replica._connection.execute("SELECT set_config('glottis.workspace', 'acme', true)")
        for statement in statements:
            assert await replica._connection.execute(statement) != "UPDATE 0"
        return replica

    async def commits_beside(self, running: RunningControlPlane, request: Any) -> httpx.Response:
        """Commit when the request waits for this change, or has passed it by; return its answer. Any: a coroutine."""
        watching_locks = await asyncpg.connect(running.database.superuser_url)
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        asked: asyncio.Future[httpx.Response] = asyncio.ensure_future(request)
        async with asyncio.timeout(10):
            while not asked.done() and not await watching_locks.fetchval(query):
                pass
        await self._transaction.commit()
        answer = await asked
        await self._connection.close()
        await watching_locks.close()
        return answer


async def test_a_change_that_saw_an_older_version_is_refused_as_such(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        team = (await client.post("/teams", json={"name": "voice"})).json()
        user = (await client.post("/users", json={"name": "grace"})).json()
        other = await OtherReplica.changing(
            control_plane,
            f"UPDATE principals SET version = 2 WHERE id = '{user['id']}'",
            "INSERT INTO memberships (workspace, principal_id, team_id, position) "
            f"VALUES ('acme', '{user['id']}', '{team['id']}', 0)",
        )
        answer = await other.commits_beside(
            control_plane, client.patch("/users/grace", json={"teams": ["voice"]}, headers={"If-Match": '"v1"'})
        )
    assert (answer.status_code, answer.json()["reason"]) == (412, "changed_meanwhile")


async def test_a_change_whatever_the_version_is_made_on_what_the_other_left(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await client.post("/teams", json={"name": "voice"})
        other = await OtherReplica.changing(control_plane, "UPDATE teams SET version = 2, allowed_voices = '{a}'")
        answer = await other.commits_beside(
            control_plane, client.patch("/teams/voice", json={"allowed_voices": ["b"]}, headers={"If-Match": "*"})
        )
    assert (answer.status_code, answer.json()["version"], answer.json()["allowed_voices"]) == (200, 3, ["b"])


async def test_a_thing_is_deleted_once(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await client.post("/teams", json={"name": "voice"})
        other = await OtherReplica.changing(control_plane, "DELETE FROM teams")
        answer = await other.commits_beside(control_plane, client.delete("/teams/voice"))
        audited = (await client.get("/audit", params={"kind": "team"})).json()["items"]
    assert answer.status_code == 404
    assert [entry["action"] for entry in audited] == ["create"]


async def test_two_owners_cannot_both_step_down(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await client.post("/users", json={"name": "grace", "role": "owner"})
        other = await OtherReplica.changing(control_plane, "UPDATE principals SET role = 'member' WHERE name = 'grace'")
        answer = await other.commits_beside(
            control_plane, client.patch("/users/ada", json={"role": "member"}, headers={"If-Match": "*"})
        )
    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "A workspace keeps at least one owner; make another one first.",
    )


async def test_two_owners_cannot_delete_each_other(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await client.post("/users", json={"name": "grace", "role": "owner"})
        other = await OtherReplica.changing(control_plane, "UPDATE principals SET is_disabled = true WHERE name = 'ada'")
        answer = await other.commits_beside(control_plane, client.delete("/users/grace"))
    assert (answer.status_code, answer.json()["reason"]) == (409, "conflict")


async def test_a_credential_is_sealed_for_the_origin_that_the_account_has_when_it_is_set(
    control_plane: RunningControlPlane,
) -> None:
    account = {"name": "eu", "provider": "cartesia", "origin": "https://api.cartesia.ai", "credential": "sk_1"}
    async with control_plane.client() as client, watching(control_plane) as watcher:
        await client.post("/accounts", json=account)
        other = await OtherReplica.changing(
            control_plane,
            "UPDATE accounts SET origin = 'https://api.cartesia.example', version = 2",
            "DELETE FROM credentials",
        )
        answer = await other.commits_beside(control_plane, client.put("/accounts/eu/credential", json={"credential": "sk_2"}))
        assert answer.status_code == 200, answer.text
        found = await watcher.until(
            lambda snapshot: (
                bool(snapshot.accounts) and [credential.sealed.version for credential in snapshot.accounts[0].credentials] == [2]
            ),
            "the new credential is published",
        )
    sealed = found.accounts[0].credentials[0].sealed
    purpose = sealing.credential_purpose("acme", found.accounts[0].id, 2, "https://api.cartesia.example")
    assert control_plane.fleet.opened(sealed, purpose) == b"sk_2"


async def test_the_credential_that_retires_is_the_one_that_was_active(control_plane: RunningControlPlane) -> None:
    account = {"name": "eu", "provider": "cartesia", "origin": "https://api.cartesia.ai", "credential": "sk_1"}
    async with control_plane.client() as client:
        await client.post("/accounts", json=account)
        answers = await asyncio.gather(
            *(client.put("/accounts/eu/credential", json={"credential": f"sk_{number}"}) for number in range(2, 8))
        )
        slots = (await client.get("/accounts/eu")).json()["credentials"]
    assert [answer.status_code for answer in answers] == [200] * 6
    assert {slot["slot"]: slot["version"] for slot in slots} == {"active": 7, "retiring": 6}
