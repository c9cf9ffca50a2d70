"""The configuration that a gateway pod acts on, whole, at one revision.

Plain records, as the control plane publishes them and as the gateway indexes them; how records become a decision is
`policy`'s business. A snapshot travels as chunks named by content hash and one signed manifest (`contracts.manifest`), so
that one change moves one small chunk even with 100,000 grants. All ids are opaque strings without spaces or dots; `subject`s
are written `user:<id>`, `service_account:<id>` or `team:<id>`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias
from zlib import crc32

import msgspec

from contracts import codec

PrincipalKind: TypeAlias = Literal["user", "service_account"]
ModelType: TypeAlias = Literal["text-to-speech", "speech-to-text"]
CollaboratorRole: TypeAlias = Literal["manager", "user"]
CredentialScheme: TypeAlias = Literal["bearer", "x-api-key"]
IssuerKind: TypeAlias = Literal["oidc", "glottis", "access_token"]


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What every record has: its id and the workspace that it belongs to."""

    id: str
    workspace: str


class Sealed(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A secret sealed to the gateway fleet (see `contracts.sealing`)."""

    key_id: str
    version: int
    ciphertext: bytes


class Workspace(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tenant. `transcript_key` keys the transcript hash; `access_token_key` signs `/access-token` answers (PKCS8 DER)."""

    id: str
    name: str
    default_accounts: dict[str, str] = {}
    """provider -> account id, used when a request names no model"""
    transcript_key: Sealed | None = None
    access_token_key: Sealed | None = None
    span_sampling: float = 1.0
    """share of exchanges whose spans are published; usage is never sampled"""


class Issuer(Record, frozen=True, omit_defaults=True, kw_only=True):
    """Who may sign caller tokens. (issuer, audience) belongs to exactly one workspace."""

    issuer: str
    audiences: tuple[str, ...]
    kind: IssuerKind = "oidc"
    jwks_uri: str | None = None
    """None: `jwks` is the whole key set"""
    jwks: bytes | None = None
    """a JWKS document, JSON"""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    subject_claim: str = "sub"
    email_claim: str | None = None
    groups_claim: str | None = None
    group_teams: dict[str, str] = {}
    """group -> team id"""
    admits_unregistered: bool = False
    """True: a subject without a principal record is a user of the teams that its groups map to"""
    expiry: str = "finish-session"
    """what a token's expiry does to an open session: `finish-session`, `grace:<seconds>` or `hard`"""
    leeway_seconds: int = 30


class Principal(Record, frozen=True, omit_defaults=True, kw_only=True):
    """A user or service account. `id` is what tokens of our own carry as `sub`; OIDC users match (issuer_id, subject)."""

    kind: PrincipalKind
    name: str
    teams: tuple[str, ...] = ()
    issuer_id: str | None = None
    subject: str | None = None
    is_disabled: bool = False


class Team(Record, frozen=True, omit_defaults=True, kw_only=True):
    """A set of principals, for grants, defaults and cost."""

    name: str
    default_accounts: dict[str, str] = {}
    allowed_voices: tuple[str, ...] | None = None
    """voices that its grants open, beside what the account's own list says; None: any voice"""


class Credential(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One slot of an account's credential; `retiring` is still accepted by the provider while pods switch over."""

    slot: Literal["active", "retiring"]
    sealed: Sealed


class Account(Record, frozen=True, omit_defaults=True, kw_only=True):
    """A provider account: origin, credential, rules that hold for all its models."""

    name: str
    provider: str
    origin: str
    """`https://host[:port]`, or `http://…` where the operator allows it"""
    credentials: tuple[Credential, ...] = ()
    credential_scheme: CredentialScheme = "bearer"
    priority: int = 100
    """lowest wins when several granted accounts register a model; then by name"""
    ca_pem: bytes | None = None
    tls_server_name: str | None = None
    allowed_voices: tuple[str, ...] | None = None
    """None: any voice"""
    forwards_trace_headers: bool = False
    region: str = ""
    is_disabled: bool = False


class Model(Record, frozen=True, omit_defaults=True, kw_only=True):
    """A model id registered in an account."""

    account: str
    name: str
    type: ModelType
    priority: int | None = None
    """None: the account's"""
    only: tuple[str, ...] | None = None
    """None: whoever is granted the account; else these subjects alone, and an empty tuple means nobody"""


class Grant(Record, frozen=True, omit_defaults=True, kw_only=True):
    """A collaborator: a subject attached to an account with a role, and operations beyond the role's own."""

    account: str
    subject: str
    role: CollaboratorRole = "user"
    operations: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, at one revision. Order of records carries no meaning."""

    revision: int
    created_at_ms: int
    workspaces: tuple[Workspace, ...] = ()
    issuers: tuple[Issuer, ...] = ()
    principals: tuple[Principal, ...] = ()
    teams: tuple[Team, ...] = ()
    accounts: tuple[Account, ...] = ()
    models: tuple[Model, ...] = ()
    grants: tuple[Grant, ...] = ()


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A share of the records of one kind; exactly one of the lists is filled."""

    SCHEMA = 1

    schema: int = 1
    workspaces: tuple[Workspace, ...] = ()
    issuers: tuple[Issuer, ...] = ()
    principals: tuple[Principal, ...] = ()
    teams: tuple[Team, ...] = ()
    accounts: tuple[Account, ...] = ()
    models: tuple[Model, ...] = ()
    grants: tuple[Grant, ...] = ()


KINDS: tuple[str, ...] = ("workspaces", "issuers", "principals", "teams", "accounts", "models", "grants")

_RECORDS_A_CHUNK = 256


def bucket_count(record_count: int) -> int:
    """Return over how many buckets the records of one kind are spread: a power of two."""
    buckets = 1
    while buckets * _RECORDS_A_CHUNK < record_count:
        buckets *= 2
    return buckets


def bucket_of(record_id: str, buckets: int) -> int:
    """Return the bucket that a record belongs to. buckets: as `bucket_count` gave it."""
    return crc32(record_id.encode()) & (buckets - 1)


def chunk_of(kind: str, records: Iterable[Any]) -> bytes:
    """Return the encoded chunk of one bucket's records, the same whatever their order was. kind: one of `KINDS`."""
    # Any: the kind is data here; decoding a chunk checks the types.
    share: dict[str, Any] = {kind: tuple(sorted(records, key=lambda record: record.id))}
    return codec.encode(Chunk(**share))


def chunks_of(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the snapshot's chunks, encoded; equal records give equal chunks whatever their order was.

    A record's chunk is chosen by a hash of its id, over a power of two of buckets, so that one change alters one chunk and
    growth re-cuts a kind only when it doubles. A chunk of 256 of the largest usual records stays below 256 KiB.
    """
    for kind in KINDS:
        records = getattr(snapshot, kind)
        buckets = bucket_count(len(records))
        shares: list[list[Any]] = [[] for _ in range(buckets)]  # Any: as in `chunk_of`
        for record in records:
            shares[bucket_of(record.id, buckets)].append(record)
        for share in shares:
            if share:
                yield chunk_of(kind, share)


def snapshot_of(revision: int, created_at_ms: int, chunks: Iterable[bytes | Chunk]) -> Snapshot:
    """Return the snapshot that the chunks make up. Raises codec.Undecodable for a chunk of another shape."""
    lists: dict[str, list[msgspec.Struct]] = {kind: [] for kind in KINDS}
    for chunk in chunks:
        decoded = chunk if isinstance(chunk, Chunk) else codec.decode(chunk, Chunk)
        for kind in KINDS:
            lists[kind].extend(getattr(decoded, kind))
    by_kind: dict[str, Any] = {kind: tuple(records) for kind, records in lists.items()}  # as typed by Chunk
    return Snapshot(revision=revision, created_at_ms=created_at_ms, **by_kind)
