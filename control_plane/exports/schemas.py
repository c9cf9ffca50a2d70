"""What the API takes and gives for export targets. Secret headers go in and never come out."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, StringConstraints

from contracts.exports import ExportProtocol
from control_plane.kit.shapes import Answer, Handle, Moment, Shape

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]
HeaderValue = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")]
Attributes = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=200)], Annotated[str, StringConstraints(max_length=1000)]],
    Field(max_length=50),
]
Endpoint = Annotated[
    str,
    StringConstraints(min_length=1, max_length=500, pattern=r"^[^\s\x00-\x1f\x7f]+$"),
    Field(
        description="grpc: https://host:port; http/protobuf: the whole URL",
        examples=["https://otlp.example.com/v1/traces"],
    ),
]
Pem = Annotated[str, StringConstraints(max_length=100_000, pattern=r"-----BEGIN CERTIFICATE-----")]


class NewExportTarget(Shape):
    """A receiver to send spans to."""

    name: Handle
    endpoint: Endpoint
    protocol: ExportProtocol = "http/protobuf"
    compression: Literal["none", "gzip"] = "gzip"
    headers: Annotated[dict[HeaderName, HeaderValue], Field(max_length=20, description="not secret")] = {}
    secret_headers: Annotated[dict[HeaderName, SecretStr], Field(max_length=20, description="write-only")] = {}
    ca: Pem | None = None
    resource_attributes: Attributes = {}
    timeout_seconds: Annotated[int, Field(ge=1, le=60)] = 10
    disabled: bool = False


class ExportTargetChange(Shape):
    """What to change; absent fields stay. Another endpoint or CA drops the secret headers, unless they are sent along."""

    endpoint: Endpoint = Field(default="", description="absent: stays", validate_default=False)
    protocol: ExportProtocol = "http/protobuf"
    compression: Literal["none", "gzip"] = "gzip"
    headers: Annotated[dict[HeaderName, HeaderValue], Field(max_length=20)] = {}
    secret_headers: Annotated[dict[HeaderName, SecretStr], Field(max_length=20, description="write-only")] = {}
    ca: Pem | None = None
    resource_attributes: Attributes = {}
    timeout_seconds: Annotated[int, Field(ge=1, le=60)] = 10
    disabled: bool = False


class ExportTarget(Answer):
    """A receiver of the workspace's spans."""

    id: str
    name: str
    endpoint: str
    protocol: ExportProtocol
    compression: str
    headers: dict[str, str]
    has_secret_headers: bool
    has_ca: bool
    resource_attributes: dict[str, str]
    timeout_seconds: int
    is_disabled: bool = Field(serialization_alias="disabled")
    version: int
    created_at: Moment
