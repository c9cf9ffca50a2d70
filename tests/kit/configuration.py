"""Publishes configuration as the control plane does: signed manifests, chunks, revocations, with the real bucket names.

For tests of gateways that are fed. Keys are made once a test; `secrets` writes them where a gateway's settings find them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from nats.aio.client import Client
from nats.js.api import StreamConfig

from contracts import manifest, revocations, sealing, signing, subjects
from contracts.events import UsageEvent, usage_events
from contracts.revocations import EndSession, Revocation
from contracts.secret import Secret
from contracts.snapshot import Account, Credential, Issuer, Snapshot, chunks_of

ADMIN_PERMISSIONS = subjects.Permissions(inbox="_INBOX_admin", publish=(">",), subscribe=(">",))
"""of the user `admin` of a test's NATS account"""


@dataclass
class ControlPlane:
    """What a control plane does to the bus. client: one that may do everything."""

    client: Client
    manifest_key: Secret = field(default_factory=lambda: Secret(secrets.token_bytes(32)))
    fleet_key: Secret = field(default_factory=lambda: Secret(secrets.token_bytes(32)))

    @property
    def manifest_public_key(self) -> bytes:
        return signing.public_key_of(self.manifest_key)

    async def prepare(self) -> None:
        """Make buckets and streams, as the control plane does at its start."""
        streams = self.client.jetstream()
        for bucket in (subjects.CONFIG_BUCKET, subjects.REVOCATIONS_BUCKET):
            await streams.create_key_value(bucket=bucket, history=1, direct=True)
        await streams.create_key_value(bucket=subjects.LEASES_BUCKET, history=1, direct=True, ttl=subjects.SESSION_LEASE_SECONDS)
        for name, pattern in (
            (subjects.USAGE_STREAM, subjects.USAGE_SUBJECTS),
            (subjects.SPANS_STREAM, subjects.SPANS_SUBJECTS),
        ):
            await streams.add_stream(StreamConfig(name=name, subjects=[pattern], duplicate_window=120))

    async def publish(self, snapshot: Snapshot, key: Secret | None = None) -> None:
        """Publish a snapshot: chunks first, then the manifest that names them. key: another than the pinned one."""
        await self.publish_chunks(snapshot)
        await self.publish_revisions(snapshot, [snapshot.revision], key)

    async def publish_chunks(self, snapshot: Snapshot) -> None:
        """Publish the chunks alone."""
        bucket = await self.client.jetstream().key_value(subjects.CONFIG_BUCKET)
        for chunk in await self._chunks(snapshot):
            await bucket.put(subjects.chunk_key(manifest.chunk_name(chunk)), chunk)

    async def publish_revisions(self, snapshot: Snapshot, revisions: Iterable[int], key: Secret | None = None) -> None:
        """Publish manifests alone, one a revision, all of the same chunks, as fast as the bus takes them."""
        bucket = await self.client.jetstream().key_value(subjects.CONFIG_BUCKET)
        chunks = await self._chunks(snapshot)
        for revision in revisions:
            signed = manifest.signed(revision, snapshot.created_at_ms, chunks, key or self.manifest_key)
            await bucket.put(subjects.MANIFEST_KEY, signed)

    async def _chunks(self, snapshot: Snapshot) -> list[bytes]:
        # In a thread: a large snapshot must not stall the loop of a test that measures a feed's own stalls.
        return await asyncio.to_thread(lambda: list(chunks_of(snapshot)))

    async def command(self, command: Revocation | EndSession, key: Secret | None = None) -> None:
        """Revoke, or end a session. key: another than the pinned one."""
        signed = revocations.signed(command, key or self.manifest_key)
        await self.put_revocation(revocations.key_of(command), signed)

    async def put_revocation(self, key: str, value: bytes) -> None:
        """Write whatever value under a key of the revocations bucket."""
        await (await self.client.jetstream().key_value(subjects.REVOCATIONS_BUCKET)).put(key, value)

    async def revoke(self, revocation: Revocation) -> None:
        await self.command(revocation)

    async def unrevoke(self, revocation: Revocation) -> None:
        bucket = await self.client.jetstream().key_value(subjects.REVOCATIONS_BUCKET)
        await bucket.delete(revocations.key_of(revocation))

    async def end_session(self, command: EndSession) -> None:
        await self.command(command)

    def with_credential(self, account: Account, credential: Secret, version: int = 1) -> Account:
        """Return the account with its credential sealed to the fleet."""
        purpose = sealing.credential_purpose(account.workspace, account.id, version, account.origin)
        sealed = sealing.sealed(credential, version, sealing.fleet_public_key(self.fleet_key), purpose)
        return msgspec.structs.replace(account, credentials=(Credential(slot="active", sealed=sealed),))

    def with_access_tokens(self, snapshot: Snapshot, workspace: str) -> Snapshot:
        """Return the snapshot with a key that signs `/access-token` answers of the workspace, and the issuer for it."""
        private = Ed25519PrivateKey.generate()
        der = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        purpose = sealing.workspace_key_purpose(workspace, "access_token_key", 1)
        sealed = sealing.sealed(Secret(der), 1, sealing.fleet_public_key(self.fleet_key), purpose)
        public = base64.urlsafe_b64encode(private.public_key().public_bytes_raw()).rstrip(b"=").decode()
        jwk = {"kty": "OKP", "crv": "Ed25519", "kid": "access", "x": public}
        issuer = Issuer(
            id="i-access",
            workspace=workspace,
            issuer="https://glottis.test/access",
            audiences=("glottis",),
            kind="access_token",
            jwks=json.dumps({"keys": [jwk]}).encode(),
        )
        workspaces = tuple(
            msgspec.structs.replace(record, access_token_key=sealed) if record.id == workspace else record
            for record in snapshot.workspaces
        )
        return msgspec.structs.replace(snapshot, workspaces=workspaces, issuers=(*snapshot.issuers, issuer))

    def key_files(self, folder: Path) -> dict[str, str]:
        """Write the keys that a gateway is given; return the variables that name the files."""
        public, fleet = folder / "manifest.pub", folder / "fleet.key"
        public.write_bytes(base64.b64encode(self.manifest_public_key))
        fleet.write_bytes(base64.b64encode(self.fleet_key.reveal()))
        return {"GLOTTIS_MANIFEST_PUBLIC_KEY_FILE": str(public), "GLOTTIS_FLEET_KEY_FILE": str(fleet)}


def at_revision(snapshot: Snapshot, revision: int, **changes: Any) -> Snapshot:
    """Return the snapshot at another revision, with changed records. Any: records of the field's own type."""
    return msgspec.structs.replace(snapshot, revision=revision, **changes)


async def usage_on_stream(client: Client) -> list[UsageEvent]:
    """Return every usage event that the stream holds, in order; client: one that may do everything."""
    streams = client.jetstream()
    state = (await streams.stream_info(subjects.USAGE_STREAM)).state
    events: list[UsageEvent] = []
    for sequence in range(max(1, state.first_seq), state.last_seq + 1):  # an empty stream may begin with 0
        message = await streams.get_msg(subjects.USAGE_STREAM, sequence)
        events += usage_events(message.data or b"")
    return events
