"""The exporter against a real bus and receivers that behave, and that do not."""

import asyncio
import base64
import datetime
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nats.errors
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from contracts import codec, sealing
from contracts.exports import ExportTarget, ExportTargets, SecretHeaders
from contracts.secret import Secret
from contracts.subjects import CONFIG_BUCKET, EXPORTS_KEY, SPANS_EXPORT_CONSUMER, SPANS_STREAM, spans_subject
from tests.doubles.otlp import OtlpReceiver, Tls, grpc_receiver, http_receiver
from tests.kit.processes import free_port
from tests.kit.services import NatsAccount
from tests.kit.usage import TestBus, Worker, batch_of, running, span_event, until

MakeExporter = Callable[..., Worker]
FLEET_KEY = Secret(bytes(range(32)))


@pytest.fixture
def exporter(nats_account: NatsAccount, tmp_path: Path) -> MakeExporter:
    """Makes exporters, not started. targets: entries of the operator's file; allowed: origins that may be private."""
    seed = tmp_path / "exporter.nk"
    seed.write_bytes(nats_account.seeds["exporter"].reveal())
    fleet_key = tmp_path / "fleet.key"
    fleet_key.write_bytes(base64_line(FLEET_KEY))

    def make(*targets: dict[str, Any], allowed: str = "", **environment: str) -> Worker:
        port = free_port()
        file = tmp_path / f"targets-{port}.yaml"
        file.write_text(yaml.safe_dump(list(targets)))
        return Worker(
            "control_plane.exporter",
            {
                "GLOTTIS_NATS_URL": nats_account.url,
                "GLOTTIS_NATS_SEED_FILE": str(seed),
                "GLOTTIS_EXPORTER_LISTEN": f"127.0.0.1:{port}",
                "GLOTTIS_EXPORTER_TARGETS_FILE": str(file),
                "GLOTTIS_EXPORTER_ACK_WAIT_SECONDS": "3",
                "GLOTTIS_EXPORTER_FIRST_BACKOFF_SECONDS": "0.1",
                "GLOTTIS_EXPORTER_LONGEST_BACKOFF_SECONDS": "0.5",
                "GLOTTIS_EXPORTER_DRAIN_SECONDS": "1",
                "GLOTTIS_FLEET_KEY_FILE": str(fleet_key),
                "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": allowed,
                **environment,
            },
            tmp_path,
        )

    return make


def base64_line(key: Secret) -> bytes:
    """Return a key as key files hold it."""

    return base64.b64encode(key.reveal()) + b"\n"


def origin(endpoint: str) -> str:
    """Return `scheme://host:port` of an endpoint."""
    return "/".join(endpoint.split("/")[:3])


@pytest.fixture(params=["http/protobuf", "grpc"])
def receiver(request: pytest.FixtureRequest) -> Iterator[tuple[OtlpReceiver, dict[str, Any]]]:
    """A receiver of each transport, and the entry of the operator's file that names it."""
    with ExitStack() as stack:
        made, endpoint = stack.enter_context(http_receiver() if request.param == "http/protobuf" else grpc_receiver())
        yield made, {"id": "t1", "name": "receiver", "endpoint": endpoint, "protocol": request.param, "timeout_seconds": 1}


async def arrived(receiver: OtlpReceiver, *exchanges: str, deadline_seconds: float = 20) -> None:
    """Wait until the spans of each exchange are there."""
    wanted = {f"{exchange} {part}" for exchange in exchanges for part in ("inbound", "credential", "outbound")}

    async def is_so() -> bool:
        return wanted <= set(receiver.names())

    await until(is_so, f"the spans of {', '.join(exchanges[:5])}", deadline_seconds)


async def all_acknowledged(bus: TestBus, deadline_seconds: float = 30) -> None:
    """Wait until every span message has been acknowledged by the exporter."""

    async def is_so() -> bool:
        try:
            info = await bus.client.jetstream().consumer_info(SPANS_STREAM, SPANS_EXPORT_CONSUMER)
        except nats.errors.Error:
            return False
        return info.num_pending == 0 and info.num_ack_pending == 0

    await until(is_so, "all spans to be acknowledged", deadline_seconds)


async def test_spans_arrive_whole(
    bus: TestBus, exporter: MakeExporter, receiver: tuple[OtlpReceiver, dict[str, Any]], tmp_path: Path
) -> None:
    double, target = receiver
    (tmp_path / "header").write_text("Bearer canary-1\n")
    target |= {
        "headers": {"x-tenant": "acme"},
        "header_files": {"authorization": str(tmp_path / "header")},
        "resource_attributes": {"deployment.environment.name": "test"},
    }
    event = span_event("r1", **{"glottis.model": "kokoro-82m", "glottis.characters": 42, "glottis.is_drained": False})
    async with running(exporter(target, allowed=origin(target["endpoint"]))) as worker:
        await bus.publish_spans(event)
        await arrived(double, "r1")
        await all_acknowledged(bus)
    resource, inbound = next((resource, span) for resource, span in double.received.spans if span.name == "r1 inbound")
    outbound = next(span for _, span in double.received.spans if span.name == "r1 outbound")
    assert inbound.trace_id.hex() == event.trace_id
    assert outbound.parent_span_id == inbound.span_id
    assert (inbound.kind, outbound.kind) == (2, 3)
    assert inbound.start_time_unix_nano == event.spans[0].start_ns
    assert inbound.end_time_unix_nano == event.spans[0].end_ns
    attributes = {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in inbound.attributes}
    assert attributes == {"glottis.model": "kokoro-82m", "glottis.characters": 42, "glottis.is_drained": False}
    assert resource == {
        "service.name": "glottis-gateway",
        "service.instance.id": "pod-1",
        "glottis.workspace": "acme",
        "deployment.environment.name": "test",
    }
    assert double.received.headers[0]["x-tenant"] == "acme"
    assert double.received.headers[0]["authorization"] == "Bearer canary-1"
    assert "canary-1" not in worker.output


@pytest.mark.parametrize("fault", ["refuse", "bad", "garbage", "hang"])
async def test_a_receiver_that_fails_for_a_while_gets_everything_afterwards(
    bus: TestBus, exporter: MakeExporter, receiver: tuple[OtlpReceiver, dict[str, Any]], fault: str
) -> None:
    double, target = receiver
    if (target["protocol"], fault) == ("http/protobuf", "garbage"):
        pytest.skip("a 200 is a success in OTLP/HTTP, whatever its body holds")
    double.fault = fault
    async with running(exporter(target, allowed=origin(target["endpoint"]))):
        await bus.publish_spans(*(span_event(f"r{number}") for number in range(20)))

        async def has_tried_twice() -> bool:
            return double.received.requests >= 2

        await until(has_tried_twice, "a second attempt")
        assert double.names() == []
        double.fault = ""
        await arrived(double, *(f"r{number}" for number in range(20)))
        await all_acknowledged(bus)


async def test_a_receiver_that_hangs_holds_up_nobody_else(bus: TestBus, exporter: MakeExporter) -> None:
    with http_receiver() as (good, good_endpoint), grpc_receiver() as (bad, bad_endpoint):
        bad.fault = "hang"
        worker = exporter(
            {"id": "good", "name": "good", "endpoint": good_endpoint},
            {"id": "bad", "name": "bad", "endpoint": bad_endpoint, "protocol": "grpc", "timeout_seconds": 1},
            allowed=f"{origin(good_endpoint)},{origin(bad_endpoint)}",
        )
        async with running(worker):
            for number in range(5):
                await bus.publish_spans(span_event(f"r{number}"))
                await arrived(good, f"r{number}", deadline_seconds=5)


async def test_what_a_receiver_never_takes_is_dropped_and_counted(bus: TestBus, exporter: MakeExporter) -> None:
    with http_receiver() as (double, endpoint):
        double.fault = "bad"
        target = {"id": "t1", "name": "t1", "endpoint": endpoint}
        worker = exporter(target, allowed=origin(endpoint), GLOTTIS_EXPORTER_LONGEST_BACKOFF_SECONDS="0.1")
        async with running(worker):
            await bus.publish_spans(span_event("r1"))
            await all_acknowledged(bus)
            double.fault = ""
            await bus.publish_spans(span_event("r2"))
            await arrived(double, "r2")
        assert "r1 inbound" not in double.names()


async def test_a_kill_loses_nothing(bus: TestBus, exporter: MakeExporter) -> None:
    with http_receiver() as (double, endpoint):
        target = {"id": "t1", "name": "t1", "endpoint": endpoint}
        double.fault = "refuse"
        worker = exporter(target, allowed=origin(endpoint))
        worker.child.start()
        await bus.publish_spans(*(span_event(f"r{number}") for number in range(50)))

        async def is_in_hand() -> bool:
            return double.received.requests > 0

        await until(is_in_hand, "a first attempt")
        worker.child.kill()
        double.fault = ""
        async with running(exporter(target, allowed=origin(endpoint))):
            await arrived(double, *(f"r{number}" for number in range(50)))


async def test_a_batch_of_events_with_one_that_is_none(bus: TestBus, exporter: MakeExporter) -> None:
    with http_receiver() as (double, endpoint):
        async with running(exporter({"id": "t1", "name": "t1", "endpoint": endpoint}, allowed=origin(endpoint))):
            bad_ids = codec.encode(span_event("r2")).replace(span_event("r2").trace_id.encode(), b"z" * 32)
            await bus.publish(
                spans_subject("acme"),
                batch_of([codec.encode(span_event("r1")), b"\xc0", bad_ids, codec.encode(span_event("r3"))]),
            )
            await arrived(double, "r1", "r3")
            await all_acknowledged(bus)
        assert "r2 inbound" not in double.names()


async def test_each_workspace_has_receivers_of_its_own_and_the_operators_get_all(bus: TestBus, exporter: MakeExporter) -> None:
    with http_receiver() as (theirs, their_endpoint), http_receiver() as (operators, operators_endpoint):
        headers = SecretHeaders(headers={"authorization": "Bearer canary-2"})
        purpose = sealing.export_headers_purpose("acme", "x-1", 3, their_endpoint)
        public_key = sealing.fleet_public_key(FLEET_KEY)
        published = ExportTarget(
            id="x-1",
            workspace="acme",
            name="theirs",
            endpoint=their_endpoint,
            sealed_headers=sealing.sealed(Secret(codec.encode(headers)), 3, public_key, purpose),
        )
        everywhere = ExportTarget(id="x-2", workspace="*", name="a tenant may not name all", endpoint=their_endpoint)
        bucket = await bus.client.jetstream().key_value(CONFIG_BUCKET)
        await bucket.put(EXPORTS_KEY, codec.encode(ExportTargets(revision=1, targets=(published, everywhere))))
        worker = exporter(
            {"id": "all", "name": "operator's", "endpoint": operators_endpoint},
            allowed=f"{origin(their_endpoint)},{origin(operators_endpoint)}",
        )
        async with running(worker):
            await bus.publish_spans(span_event("r1"), span_event("r2", workspace="other"), span_event("r3", workspace=""))
            await arrived(operators, "r1", "r2", "r3")
            await arrived(theirs, "r1")
            await all_acknowledged(bus)
            assert {name.split()[0] for name in theirs.names()} == {"r1"}
            assert theirs.received.headers[0]["authorization"] == "Bearer canary-2"
            assert "authorization" not in operators.received.headers[0]

            # The target is taken away while it runs.
            await bucket.put(EXPORTS_KEY, codec.encode(ExportTargets(revision=2)))

            async def is_taken() -> bool:
                return '"revision": 2' in worker.output or "revision=2" in worker.output

            await until(is_taken, "the second list of targets")
            await bus.publish_spans(span_event("r4"))
            await arrived(operators, "r4")
            await all_acknowledged(bus)
        assert "r4 inbound" not in theirs.names()
        assert "canary-2" not in worker.output


async def test_private_addresses_are_refused_unless_the_operator_lists_them(bus: TestBus, exporter: MakeExporter) -> None:
    with http_receiver() as (plain, endpoint):
        by_name = endpoint.replace("http://127.0.0.1", "https://localhost")
        worker = exporter(
            {"id": "t1", "name": "t1", "endpoint": endpoint},
            {"id": "t2", "name": "t2", "endpoint": by_name},
            {"id": "t3", "name": "t3", "endpoint": "https://[::ffff:127.0.0.1]:4317", "protocol": "grpc"},
        )
        async with running(worker):
            await bus.publish_spans(span_event("r1"))
            await all_acknowledged(bus)
        assert plain.received.requests == 0
        assert worker.output.count("export failed") == 3


async def test_a_redirect_is_not_followed(bus: TestBus, exporter: MakeExporter) -> None:
    with http_receiver() as (double, endpoint):
        double.fault = "redirect"
        worker = exporter(
            {"id": "t1", "name": "t1", "endpoint": endpoint},
            allowed=origin(endpoint),
            GLOTTIS_EXPORTER_LONGEST_BACKOFF_SECONDS="0.1",
        )
        async with running(worker):
            await bus.publish_spans(span_event("r1"))
            await all_acknowledged(bus)
        assert double.received.requests == 10


async def test_tls_is_checked_against_the_targets_own_authority(bus: TestBus, exporter: MakeExporter, tmp_path: Path) -> None:
    tls, other = certificate(tmp_path / "one"), certificate(tmp_path / "two")
    with grpc_receiver(tls) as (double, endpoint):
        target = {"id": "t1", "name": "t1", "endpoint": endpoint, "protocol": "grpc", "timeout_seconds": 2}
        wrong = exporter(
            target | {"ca_file": str(other.certificate)},
            allowed=origin(endpoint),
            GLOTTIS_EXPORTER_LONGEST_BACKOFF_SECONDS="0.1",
        )
        async with running(wrong):
            await bus.publish_spans(span_event("r1"))

            async def has_failed() -> bool:
                return "export failed" in wrong.output

            await until(has_failed, "the certificate to be refused")
        assert double.received.requests == 0
        async with running(exporter(target | {"ca_file": str(tls.certificate)}, allowed=origin(endpoint))):
            await arrived(double, "r1")


async def test_a_termination_signal_delivers_what_is_in_hand_and_exits_zero(bus: TestBus, exporter: MakeExporter) -> None:
    with http_receiver() as (double, endpoint):
        worker = exporter({"id": "t1", "name": "t1", "endpoint": endpoint}, allowed=origin(endpoint))
        worker.child.start()
        await bus.publish_spans(span_event("r1"))
        await arrived(double, "r1")
        assert await asyncio.to_thread(worker.child.stop) == 0


def certificate(stem: Path) -> Tls:
    """Make a certificate for localhost that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    tls = Tls(stem.with_suffix(".crt"), stem.with_suffix(".key"))
    tls.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    tls.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return tls
