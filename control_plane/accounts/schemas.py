"""What the API takes and gives for provider accounts. A credential goes in and never comes out."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, StringConstraints

from contracts.snapshot import CredentialScheme
from control_plane.kit.shapes import Answer, Handle, Moment, Shape, Text, Voices
from policy.workspace_file import Provider

Origin = Annotated[
    str,
    StringConstraints(min_length=1, max_length=300),
    Field(description="https://host[:port]; others only where the operator lists them", examples=["https://api.cartesia.ai"]),
]
Priority = Annotated[int, Field(ge=0, le=10_000, description="lowest wins where several granted accounts have a model")]
Pem = Annotated[str, StringConstraints(max_length=100_000, pattern=r"-----BEGIN CERTIFICATE-----")]
ServerName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9.-]+$")]


class NewAccount(Shape):
    """A provider account to make."""

    name: Handle = Field(examples=["cartesia-eu"])
    provider: Provider
    origin: Origin
    credential: SecretStr | None = Field(default=None, description="write-only", max_length=4096)
    credential_scheme: CredentialScheme = "bearer"
    priority: Priority = 100
    ca: Pem | None = Field(default=None, description="PEM: certificate authorities to trust instead of the system's")
    tls_server_name: ServerName | None = None
    allowed_voices: Voices | None = Field(default=None, description="absent: any voice")
    forwards_trace_headers: bool = False
    region: Text = ""
    plan: Text = ""
    disabled: bool = False


class AccountChange(Shape):
    """What to change; absent fields stay. A new origin or other TLS options drop the credential."""

    name: Handle = Field(default="", description="absent: stays", validate_default=False)
    origin: Origin = Field(default="", description="absent: stays", validate_default=False)
    credential_scheme: CredentialScheme = "bearer"
    priority: Priority = 100
    ca: Pem | None = None
    tls_server_name: ServerName | None = None
    allowed_voices: Voices | None = None
    forwards_trace_headers: bool = False
    region: Text = ""
    plan: Text = ""
    disabled: bool = False


class CredentialState(Answer):
    """What is known of a credential; never the credential."""

    slot: Literal["active", "retiring"]
    version: int
    created_at: Moment


class Account(Answer):
    """A provider account."""

    id: str
    name: str
    provider: Provider
    origin: str
    credentials: list[CredentialState]
    credential_scheme: CredentialScheme
    priority: int
    has_ca: bool
    tls_server_name: str | None
    allowed_voices: list[str] | None
    forwards_trace_headers: bool
    region: str
    plan: str
    is_disabled: bool = Field(serialization_alias="disabled")
    version: int
    created_at: Moment


class NewCredential(Shape):
    """A credential to use from now on. The one before stays as `retiring`, until it is dropped, so that no request fails."""

    credential: SecretStr = Field(max_length=4096)
    keep_previous: bool = Field(default=True, description="false: the one before is dropped at once")


class CredentialTest(Answer):
    """What the provider said to a free request with the active credential."""

    accepted: bool
    status: int = Field(description="the provider's HTTP status")
    duration_ms: int
