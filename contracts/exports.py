"""Where a workspace's spans go besides ClickHouse, as the control plane publishes it and the exporter acts on it.

An endpoint is checked like a provider's origin, at save and at each dial. Header values that are secrets travel sealed
(`contracts.sealing.export_headers_purpose`); what they hold, opened, is `SecretHeaders`.
"""

from typing import Literal, TypeAlias

import msgspec

from contracts.snapshot import Record, Sealed

ExportProtocol: TypeAlias = Literal["grpc", "http/protobuf"]
"""the names of OpenTelemetry's OTEL_EXPORTER_OTLP_PROTOCOL"""

EVERY_WORKSPACE = "*"
"""as a target's workspace, in an operator's own file alone: all spans, also of exchanges whose workspace is not known"""


class ExportTarget(Record, frozen=True, omit_defaults=True, kw_only=True):
    """An OTLP receiver. endpoint: for grpc `https://host:port`, for http/protobuf the whole URL (`…/v1/traces`)."""

    name: str
    endpoint: str
    protocol: ExportProtocol = "http/protobuf"
    compression: Literal["none", "gzip"] = "gzip"
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """not secret"""
    sealed_headers: Sealed | None = None
    ca_pem: bytes | None = None
    """None: the public authorities"""
    resource_attributes: dict[str, str] = msgspec.field(default_factory=dict)
    """beside and over ours (`service.name`, `service.instance.id`)"""
    timeout_seconds: int = 10
    is_disabled: bool = False


class SecretHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """What `ExportTarget.sealed_headers` holds, as MessagePack."""

    headers: dict[str, str]


class ExportTargets(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All targets of all workspaces, at one revision."""

    SCHEMA = 1

    schema: int = 1
    revision: int
    targets: tuple[ExportTarget, ...] = ()
