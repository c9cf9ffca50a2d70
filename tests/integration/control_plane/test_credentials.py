"""Provider credentials: two slots, what drops them, new keys, the test at the provider, and that they never come out."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest

from contracts import sealing
from contracts.secret import Secret
from contracts.snapshot import Account, Snapshot
from control_plane.accounts.credential_test import judged_address
from control_plane.kit.problems import Problem
from control_plane.vault import read_keys
from policy.origins import parse_origin
from tests.kit.control_plane import RunningControlPlane, serving, watching
from tests.kit.processes import free_port


def account_of(snapshot: Snapshot) -> Account | None:
    """Return the one account of a snapshot."""
    return snapshot.accounts[0] if snapshot.accounts else None


def opened(running: RunningControlPlane, account: Account) -> dict[str, bytes]:
    """Return slot -> credential, as a gateway opens them."""
    found = {}
    for credential in account.credentials:
        purpose = sealing.credential_purpose("acme", account.id, credential.sealed.version, account.origin)
        found[credential.slot] = running.fleet.opened(credential.sealed, purpose)
    return {str(slot): value for slot, value in found.items()}


async def make_account(running: RunningControlPlane, **fields: object) -> None:
    """Make account eu with credential sk_1."""
    body = {"name": "eu", "provider": "cartesia", "origin": "https://api.cartesia.ai", "credential": "sk_1", **fields}
    async with running.client() as client:
        answer = await client.post("/accounts", json=body)
    assert answer.status_code == 201, answer.text
    assert "sk_1" not in answer.text


async def test_a_rotation_publishes_both_slots_and_ends_with_one(control_plane: RunningControlPlane) -> None:
    await make_account(control_plane)
    async with control_plane.client() as client, watching(control_plane) as watcher:
        await client.put("/accounts/eu/credential", json={"credential": "sk_2"})
        both = await watcher.until(
            lambda snapshot: bool(snapshot.accounts) and len(snapshot.accounts[0].credentials) == 2, "both slots are published"
        )
        assert opened(control_plane, both.accounts[0]) == {"active": b"sk_2", "retiring": b"sk_1"}
        assert (await client.delete("/accounts/eu/credential/retiring")).status_code == 204
        one = await watcher.until(lambda snapshot: len(snapshot.accounts[0].credentials) == 1, "one slot is left")
        assert opened(control_plane, one.accounts[0]) == {"active": b"sk_2"}


@pytest.mark.parametrize("change", [{"origin": "https://api.cartesia.example"}, {"tls_server_name": "other.example"}])
async def test_another_host_drops_the_credential(control_plane: RunningControlPlane, change: dict[str, str]) -> None:
    await make_account(control_plane)
    async with control_plane.client() as client:
        answer = await client.patch("/accounts/eu", json=change, headers={"If-Match": "*"})
        entry = (await client.get("/audit")).json()["items"][0]
    assert answer.json()["credentials"] == []
    assert (entry["action"], entry["after"]["credential"]) == ("update", "dropped")


async def test_the_same_origin_in_another_spelling_keeps_the_credential(control_plane: RunningControlPlane) -> None:
    await make_account(control_plane)
    async with control_plane.client() as client:
        answer = await client.patch("/accounts/eu", json={"origin": "https://API.cartesia.ai:443/"}, headers={"If-Match": "*"})
    assert [slot["slot"] for slot in answer.json()["credentials"]] == ["active"]


async def test_a_credential_is_nowhere_in_clear(control_plane: RunningControlPlane) -> None:
    await make_account(control_plane, credential="sk_canary_7f3a")
    async with control_plane.client() as client:
        await client.post(
            "/accounts",
            json={"name": "us", "provider": "cartesia", "origin": "https://api.cartesia.ai", "credential": "sk_canary_7f3a"},
            headers={"Idempotency-Key": "k"},
        )
        texts = [(await client.get(path)).text for path in ("/accounts", "/accounts/eu", "/audit", "/audit/export", "/export")]
    connection = await asyncpg.connect(control_plane.database.superuser_url)
    try:
        for table in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
            texts += [str(dict(row)) for row in await connection.fetch(f"SELECT * FROM {table['tablename']}")]
    finally:
        await connection.close()
    forms = ("sk_canary_7f3a", base64.b64encode(b"sk_canary_7f3a").decode().rstrip("="), b"sk_canary_7f3a".hex())
    assert not [form for form in forms if any(form in text for text in texts)]


@pytest.mark.parametrize("credential", ["", "sk 1", "sk\n1", "sk_\u00e9", "x" * 4097])
async def test_a_credential_that_no_header_can_carry_is_refused_and_not_quoted(
    control_plane: RunningControlPlane, credential: str
) -> None:
    await make_account(control_plane)
    async with control_plane.client() as client:
        answer = await client.put("/accounts/eu/credential", json={"credential": credential})
    assert answer.status_code == 422
    assert not credential or credential not in json.loads(answer.text)["detail"]


async def test_rewrap_moves_every_secret_to_the_new_key_and_the_old_key_can_go(
    control_plane: RunningControlPlane,
) -> None:
    await make_account(control_plane)
    new = read_keys(base64.b64encode(os.urandom(32)).decode())
    both = replace(control_plane.settings, key_encryption_keys=(*new, *control_plane.settings.key_encryption_keys))
    only_new = replace(control_plane.settings, key_encryption_keys=new)
    port = free_port()
    other = replace(control_plane, url=f"http://127.0.0.1:{port}")
    async with serving(replace(both, port=port)), other.client() as client:
        moved = (await client.post("/rewrap")).json()["moved"]
        again = (await client.post("/rewrap")).json()["moved"]
    # The account's credential, the workspace's two keys, the signing key.
    assert (moved, again) == (4, 0)
    async with serving(replace(only_new, port=port)), other.client() as client:
        answer = await client.put("/accounts/eu/credential", json={"credential": "sk_2"})
        assert answer.status_code == 200, answer.text
        assert (await client.post("/tokens", json={"principal": "user:ada"})).status_code == 201


@asynccontextmanager
async def provider(origin: str, status: int, heads: list[bytes]) -> AsyncIterator[None]:
    """A provider at an origin that answers every request with a status."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", parse_origin(origin).port)
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(("status", "accepted"), [(200, True), (401, False), (302, False)])
async def test_a_credential_is_tried_at_the_provider(control_plane: RunningControlPlane, status: int, accepted: bool) -> None:
    heads: list[bytes] = []
    origin = control_plane.settings.allowed_origins[1]
    async with provider(origin, status, heads):
        await make_account(control_plane, provider="kokoro", origin=origin)
        async with control_plane.client() as client:
            answer = await client.post("/accounts/eu/credential/test")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["accepted"], answer.json()["status"]) == (accepted, status)
    assert b"Authorization: Bearer sk_1\r\n" in heads[0]
    assert f"Host: {origin.removeprefix('http://')}\r\n".encode() in heads[0]


async def test_a_provider_that_is_away_is_a_problem_and_no_defect(control_plane: RunningControlPlane) -> None:
    await make_account(control_plane, provider="kokoro", origin=control_plane.settings.allowed_origins[1])
    async with control_plane.client() as client:
        answer = await client.post("/accounts/eu/credential/test")
    assert (answer.status_code, answer.json()["reason"]) == (502, "provider_unreachable")
    assert "sk_1" not in answer.text


async def test_a_name_that_turned_private_after_it_was_saved_is_not_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolved(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(2, 1, 6, "", ("93.184.216.34", 443)), (2, 1, 6, "", ("169.254.169.254", 443))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved, raising=False)
    with pytest.raises(Problem) as refused:
        await judged_address(parse_origin("https://rebinding.example"), ())
    assert refused.value.reason == "origin_refused"


async def test_a_stored_secret_that_was_moved_to_another_row_does_not_open(control_plane: RunningControlPlane) -> None:
    vault = control_plane.app.state.vault
    closed = vault.encrypted(Secret("sk_1"), "credentials", "acme", "a", "active", "1")
    assert vault.decrypted(closed, "credentials", "acme", "a", "active", "1") == Secret("sk_1")
    with pytest.raises(ValueError, match="damaged or was moved"):
        vault.decrypted(closed, "credentials", "acme", "b", "active", "1")
