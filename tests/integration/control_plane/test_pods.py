"""Which pod runs what: pods tell the bus, the control plane shows it beside the newest revision."""

from __future__ import annotations

from typing import Any

from contracts import codec
from contracts.events import LiveSession, PodStatus, SessionsHeard
from contracts.subjects import pod_subject, sessions_subject
from tests.kit.control_plane import RunningControlPlane, until, watching


async def test_pods_are_shown_with_their_revision(control_plane: RunningControlPlane) -> None:
    async with watching(control_plane) as watcher:
        snapshot = await watcher.until(lambda snapshot: bool(snapshot.workspaces), "the workspace is published")
    gateway = await control_plane.nats.connect("gateway")
    for pod, revision in (("pod-b", 1), ("pod-a", snapshot.revision)):
        status = PodStatus(pod=pod, version="0.1.0", revision=revision, at_ms=0, open_sessions=3)
        await gateway.publish(pod_subject(pod), codec.encode(status))
    await gateway.publish(pod_subject("pod-c"), b"not a status")
    await gateway.flush()
    await until(lambda: len(control_plane.app.state.publisher.pods) == 2, "both pods are known")
    async with control_plane.client() as client:
        answer = (await client.get("/pods")).json()
    await gateway.close()
    assert answer["revision"] == snapshot.revision
    assert [(pod["pod"], pod["revision"], pod["is_current"], pod["open_sessions"]) for pod in answer["pods"]] == [
        ("pod-a", snapshot.revision, True, 3),
        ("pod-b", 1, False, 3),
    ]


def live(exchange: str, **changes: Any) -> LiveSession:
    """A session of Ada's in `acme`; any field can be another (hence Any)."""
    fields: dict[str, Any] = {
        "workspace": "acme", "principal": "ada", "principal_name": "Ada", "team": "voice", "account": "a-eu",
        "account_name": "cartesia-eu", "provider": "cartesia", "model": "sonic-3", "endpoint": "tts.websocket",
        "since_ms": 1_780_000_000_000, "contexts": 2, "characters": 42,
    }  # fmt: skip
    return LiveSession(exchange=exchange, **{**fields, **changes})


async def test_open_sessions_are_shown_to_their_own_workspace_until_they_end(control_plane: RunningControlPlane) -> None:
    gateway = await control_plane.nats.connect("gateway")

    async def tell(pod: str, *sessions: LiveSession, ended: tuple[str, ...] = ()) -> None:
        heard = SessionsHeard(pod=pod, sessions=sessions, ended=ended)
        await gateway.publish(sessions_subject(pod), codec.encode(heard))
        await gateway.flush()

    listening = control_plane.app.state.publisher
    await until(lambda: listening.is_connected, "the control plane listens")
    await tell("pod-a", live("s1"), live("s2", workspace="other"), live("s3", model="ink-2", principal="bob", since_ms=1))
    await gateway.publish(sessions_subject("pod-c"), b"not a session")
    await until(lambda: len(listening.sessions.of("acme")) == 2, "both sessions are known")
    async with control_plane.client() as client:
        everything = (await client.get("/sessions")).json()
        one = (await client.get("/sessions", params={"model": "ink-2", "user": "bob", "pod": "pod-a"})).json()
        few = (await client.get("/sessions", params={"limit": 1})).json()
        assert (await client.get("/sessions", params={"limit": 0})).status_code == 422
    await tell("pod-a", ended=("s1",))
    await until(lambda: len(listening.sessions.of("acme")) == 1, "the end is known")
    await gateway.close()
    assert [session["exchange"] for session in everything["sessions"]] == ["s3", "s1"]
    shown = everything["sessions"][1]
    assert {name: shown[name] for name in shown if name != "seen_at"} == {
        "exchange": "s1", "pod": "pod-a", "user": "ada", "user_name": "Ada", "team": "voice", "account": "a-eu",
        "account_name": "cartesia-eu", "provider": "cartesia", "model": "sonic-3", "endpoint": "tts.websocket",
        "since": "2026-05-28T20:26:40.000Z", "contexts": 2, "characters": 42, "audio_in_ms": 0,
    }  # fmt: skip
    assert [session["exchange"] for session in one["sessions"]] == ["s3"]
    assert (few["count"], len(few["sessions"])) == (2, 1)


async def test_open_sessions_are_for_owners_and_admins(control_plane: RunningControlPlane) -> None:
    async with control_plane.client("nobody") as client:
        assert (await client.get("/sessions")).status_code == 401


async def test_the_probes_tell_what_is_there(control_plane: RunningControlPlane) -> None:
    async with control_plane.client("") as client:
        live = await client.get(f"{control_plane.url}/livez")
        ready = await client.get(f"{control_plane.url}/readyz")
        metrics = await client.get(f"{control_plane.url}/metrics")
    assert (live.status_code, ready.status_code) == (200, 200)
    assert (ready.json()["status"], ready.json()["bus"], ready.json()["publishes"]) == ("ready", "connected", True)
    assert "glottis_published_revision" in metrics.text
    assert 'glottis_api_requests_total{method="POST",status="201"} 1.0' in metrics.text


async def test_the_issuer_is_discovered_like_any_other(control_plane: RunningControlPlane) -> None:
    async with control_plane.client("") as client:
        found = (await client.get(f"{control_plane.url}/w/acme/.well-known/openid-configuration")).json()
        root = (await client.get(f"{control_plane.url}/.well-known/openid-configuration")).json()
        keys = (await client.get(found["jwks_uri"])).json()["keys"]
    assert found["issuer"] == f"{control_plane.url}/w/acme"
    assert root["jwks_uri"] == found["jwks_uri"] == f"{control_plane.url}/.well-known/jwks.json"
    assert [sorted(key) for key in keys] == [["alg", "crv", "kid", "kty", "use", "x", "y"]]


async def test_tokens_of_the_old_signing_key_stay_good_after_a_rotation(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        assert (await client.post("/signing-keys/rotate")).status_code == 204
        assert (await client.get("/workspace")).status_code == 200
        keys = (await client.get(f"{control_plane.url}/.well-known/jwks.json")).json()["keys"]
        new = (await client.post("/tokens", json={"principal": "user:ada", "audience": "glottis-api"})).json()["token"]
    assert len(keys) == 2
    async with control_plane.client(new) as client:
        assert (await client.get("/workspace")).status_code == 200


async def test_a_rotated_token_ends_when_its_overlap_is_over(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client, watching(control_plane) as watcher:
        old = (await client.post("/tokens", json={"principal": "user:ada", "name": "robot"})).json()
        new = (await client.post(f"/tokens/{old['id']}/rotate", json={"overlap_seconds": 1})).json()
        assert (new["name"], new["replaces"]) == ("robot", old["id"])
        await watcher.until_revoked(f"acme.token.{old['id']}")
        after = (await client.get(f"/tokens/{old['id']}")).json()
    assert after["revoked_at"] is not None
