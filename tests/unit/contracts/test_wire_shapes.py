"""Every wire shape of `contracts` against its golden file, both ways."""

from pathlib import Path
from typing import Any

import pytest

from contracts import codec
from contracts.claims import CallerClaims
from contracts.events import Attribution, LiveSession, PodStatus, SessionsHeard, Span, SpanEvent, UsageEvent
from contracts.exchanges import ContextRecord, ExchangeRecord, Who
from contracts.exports import ExportTarget, ExportTargets, SecretHeaders
from contracts.manifest import Manifest
from contracts.prices import Price, PriceBook
from contracts.revocations import EndSession, Revocation
from contracts.signing import SignedBody
from contracts.snapshot import (
    Account,
    Chunk,
    Credential,
    Grant,
    Issuer,
    Model,
    Principal,
    Sealed,
    Team,
    Workspace,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "contracts"

SEALED = Sealed(key_id="0123456789abcdef", version=3, ciphertext=b"\x00\x01sealed")
ATTRIBUTION = Attribution(
    workspace="acme",
    principal="u-1",
    principal_kind="user",
    principal_name="Ada",
    team="t-voice",
    team_name="Voice",
    token="jti-1",
    account="a-cartesia",
    account_name="cartesia-eu",
    provider="cartesia",
    model="sonic-3",
    operation="tts",
    endpoint="tts.bytes",
)

WHO = Who(
    workspace="acme",
    principal="u-1",
    principal_kind="user",
    principal_name="Ada",
    token="jti-1",
    provider="cartesia",
    operation="tts",
    endpoint="tts.bytes",
    path="/tts/bytes",
    account="a-cartesia",
    account_name="cartesia-eu",
    origin="https://api.cartesia.ai",
    model="sonic-3",
    team="t-voice",
    team_name="Voice",
)

SHAPES: dict[str, Any] = {
    "chunk-workspaces": Chunk(
        workspaces=(
            Workspace(
                id="acme",
                name="Acme",
                default_accounts={"cartesia": "a-cartesia"},
                transcript_key=SEALED,
                access_token_key=SEALED,
                span_sampling=0.5,
            ),
        )
    ),
    "chunk-issuers": Chunk(
        issuers=(
            Issuer(
                id="i-1",
                workspace="acme",
                issuer="https://idp.example",
                audiences=("glottis",),
                kind="oidc",
                jwks_uri="https://idp.example/jwks",
                jwks=b'{"keys":[]}',
                algorithms=("ES256",),
                subject_claim="sub",
                email_claim="email",
                groups_claim="groups",
                group_teams={"voice": "t-voice"},
                admits_unregistered=True,
                expiry="grace:30",
                leeway_seconds=10,
            ),
        )
    ),
    "chunk-principals": Chunk(
        principals=(
            Principal(id="u-1", workspace="acme", kind="user", name="Ada", teams=("t-voice",), issuer_id="i-1", subject="ada"),
        )
    ),
    "chunk-teams": Chunk(teams=(Team(id="t-voice", workspace="acme", name="Voice", default_accounts={"kokoro": "a-k"}),)),
    "chunk-accounts": Chunk(
        accounts=(
            Account(
                id="a-cartesia",
                workspace="acme",
                name="cartesia-eu",
                provider="cartesia",
                origin="https://api.cartesia.ai",
                credentials=(Credential(slot="active", sealed=SEALED), Credential(slot="retiring", sealed=SEALED)),
                credential_scheme="x-api-key",
                priority=10,
                ca_pem=b"pem",
                tls_server_name="api.cartesia.ai",
                allowed_voices=("v-1",),
                forwards_trace_headers=True,
                region="eu",
                is_disabled=True,
            ),
        )
    ),
    "chunk-models": Chunk(
        models=(
            Model(
                id="m-1",
                workspace="acme",
                account="a-cartesia",
                name="sonic-3",
                type="text-to-speech",
                priority=5,
                only=("team:t-voice",),
            ),
        )
    ),
    "chunk-grants": Chunk(
        grants=(
            Grant(
                id="g-1",
                workspace="acme",
                account="a-cartesia",
                subject="team:t-voice",
                role="manager",
                operations=("voices.write",),
            ),
        )
    ),
    "manifest": Manifest(revision=7, created_at_ms=1764453600000, chunks=("ab" * 32,)),
    "signed-manifest": SignedBody(body=b"body", key_id="0123456789abcdef", signature=b"s" * 64),
    "revocation": Revocation(
        workspace="acme", kind="token", target="jti-1", at_ms=1764453600000, before_ms=1764453600000, expires_ms=1764540000000
    ),
    "end-session": EndSession(workspace="acme", exchange="e-1", at_ms=1764453600000, expires_ms=1764453660000),
    "usage-event": UsageEvent(
        id="e-1.2:3",
        key="e-1.2",
        seq=3,
        is_final=True,
        at_ms=1764453600000,
        pod="gateway-0",
        to=ATTRIBUTION,
        units={"characters": -4, "audio_out_ms": 1200},
        totals={"characters": 42, "audio_out_ms": 1200},
        provider_units={"credits": 42},
        outcome="completed",
        metadata={"call": "42"},
    ),
    "span-event": SpanEvent(
        id="e-1",
        workspace="acme",
        pod="gateway-0",
        trace_id="0af7651916cd43dd8448eb211c80319c",
        trace_state="a=b",
        spans=(
            Span(
                span_id="b7ad6b7169203331",
                parent_id="00f067aa0ba902b7",
                name="POST /tts/bytes",
                kind="server",
                start_ns=1764453600000000000,
                end_ns=1764453600100000000,
                is_error=True,
                attributes={"glottis.model": "sonic-3", "http.response.status_code": 200, "glottis.sampled": True},
            ),
        ),
    ),
    "exchange-record": ExchangeRecord(
        id="0192f3a0-1234-7abc-8def-0123456789ab",
        pod="gateway-0",
        trace_id="0af7651916cd43dd8448eb211c80319c",
        parent_id="00f067aa0ba902b7",
        trace_state="a=b",
        who=WHO,
        method="POST",
        is_websocket=True,
        started_at=1764453600.0,
        ended_at=1764453600.5,
        outcome="ended",
        reason="principal_revoked",
        fault_phase="send",
        anything_sent=True,
        status=101,
        upstream_status=101,
        upstream_request_id="r-1",
        peer="192.0.2.7",
        credential_asked_at=1764453600.0625,
        credential_opened_at=1764453600.125,
        dial_started_at=1764453600.1875,
        dialled_at=1764453600.25,
        sent_at=1764453600.25,
        request_ended_at=1764453600.3125,
        first_byte_at=1764453600.375,
        first_audio_at=1764453600.4375,
        largest_audio_gap=0.125,
        bytes_from_client=1,
        bytes_to_client=2,
        messages_from_client=3,
        messages_to_client=4,
        contexts=5,
        contexts_refused=6,
        voice="v-1",
        characters=7,
        transcript_hash="ab" * 32,
        closed_by="gateway",
        close_code=1008,
        metadata={"call": "42"},
        usage={"characters": 7, "requests": 1},
    ),
    "context-record": ContextRecord(
        session="0192f3a0-1234-7abc-8def-0123456789ab",
        number=3,
        pod="gateway-0",
        trace_id="0af7651916cd43dd8448eb211c80319c",
        trace_state="a=b",
        who=WHO,
        started_at=1764453600.0,
        ended_at=1764453600.5,
        outcome="provider_error",
        reason="voice_not_found",
        first_audio_at=1764453600.25,
        largest_audio_gap=0.125,
        model="sonic-3",
        voice="v-1",
        characters=7,
        transcript_hash="ab" * 32,
    ),
    "sessions-heard": SessionsHeard(
        pod="pod-1",
        sessions=(
            LiveSession(
                exchange="0192f3a0-0000-7000-8000-000000000001",
                workspace="acme",
                principal="u-1",
                principal_name="Ada",
                team="t-voice",
                account="a-cartesia",
                account_name="cartesia-eu",
                provider="cartesia",
                model="sonic-3",
                endpoint="tts.websocket",
                since_ms=1_780_000_000_000,
                contexts=2,
                characters=42,
            ),
        ),
        ended=("0192f3a0-0000-7000-8000-000000000002",),
    ),
    "pod-status": PodStatus(
        pod="gateway-0",
        version="0.1.0",
        revision=7,
        at_ms=1764453600000,
        open_sessions=2,
        open_exchanges=3,
        is_draining=True,
        spool_bytes=4096,
    ),
    "price-book": PriceBook(
        revision=2,
        prices=(
            Price(
                workspace="acme",
                provider="cartesia",
                account="a-cartesia",
                model="sonic-3",
                unit="characters",
                price="0.00003",
                currency="EUR",
                effective_ms=1764453600000,
            ),
        ),
    ),
    "export-targets": ExportTargets(
        revision=4,
        targets=(
            ExportTarget(
                id="x-1",
                workspace="acme",
                name="tempo",
                endpoint="https://otlp.example:4317",
                protocol="grpc",
                compression="none",
                headers={"x-tenant": "acme"},
                sealed_headers=SEALED,
                ca_pem=b"-----BEGIN CERTIFICATE-----",
                resource_attributes={"deployment.environment.name": "production"},
                timeout_seconds=5,
                is_disabled=True,
            ),
        ),
    ),
    "secret-headers": SecretHeaders(headers={"authorization": "Bearer x"}),
    "caller-claims": CallerClaims(
        iss="https://glottis.example",
        aud="glottis",
        sub="u-1",
        jti="jti-1",
        iat=1764453600,
        exp=1764457200,
        workspace="acme",
        kind="browser",
        team="t-voice",
        accounts=("a-cartesia",),
        models=("sonic-3",),
        operations=("tts",),
        origins=("https://app.example",),
        parent="jti-0",
        is_single_use=True,
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_written_as_its_golden_file_says(name: str) -> None:
    assert codec.encode(SHAPES[name]).hex() == (GOLDEN / f"{name}.hex").read_text().strip()


@pytest.mark.parametrize("name", SHAPES)
def test_a_golden_file_is_read_back_as_the_same_value(name: str) -> None:
    data = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    assert codec.decode(data, type(SHAPES[name])) == SHAPES[name]


def test_every_golden_file_has_a_shape() -> None:
    assert {file.stem for file in GOLDEN.glob("*.hex")} == set(SHAPES)
