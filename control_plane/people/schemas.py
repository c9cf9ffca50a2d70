"""What the API takes and gives for issuers, teams, users and service accounts. No I/O, no rules beyond single fields."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from control_plane.kit.shapes import Answer, Handle, Moment, Reference, Shape, Text, Voices
from policy.workspace_file import Algorithm, Provider, WorkspaceRole

Email = Annotated[str, StringConstraints(max_length=254, pattern=r"^[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+$")]
Defaults = Annotated[
    dict[Provider, Reference],
    Field(description="provider -> account (id or name) that is used when a request names no model", examples=[{}]),
]
Audiences = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=200)]], Field(min_length=1, max_length=20)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\s\x00-\x1f\x7f]+$")]


class NewTeam(Shape):
    """A team to make."""

    name: Handle
    defaults: Defaults = {}
    allowed_voices: Voices | None = Field(default=None, description="voices that the team's grants open; absent: any voice")


class TeamChange(Shape):
    """What to change of a team; absent fields stay, `null` for the voices takes the list away."""

    name: Handle | None = None
    defaults: Defaults | None = None
    allowed_voices: Voices | None = None


class Team(Answer):
    """A set of users and service accounts, for grants, defaults and cost."""

    id: str
    name: str
    default_accounts: dict[str, str] = Field(serialization_alias="defaults")
    allowed_voices: list[str] | None
    version: int
    created_at: Moment


class NewUser(Shape):
    """A person to make. `issuer` and `subject` identify it to the gateways; without them it only has tokens of ours."""

    name: Handle
    email: Email | None = None
    role: WorkspaceRole = "member"
    teams: Annotated[list[Reference], Field(max_length=100)] = []
    issuer: Reference | None = None
    subject: Text | None = None
    disabled: bool = False


class UserChange(Shape):
    """What to change of a user; absent fields stay, `null` takes the value away."""

    name: Handle = Field(default="", description="absent: stays", validate_default=False)
    email: Email | None = None
    role: WorkspaceRole = "member"
    teams: Annotated[list[Reference], Field(max_length=100)] = []
    issuer: Reference | None = None
    subject: Text | None = None
    disabled: bool = False


class NewServiceAccount(Shape):
    """A program to make that calls with a token of ours."""

    name: Handle
    teams: Annotated[list[Reference], Field(max_length=100)] = []
    disabled: bool = False


class ServiceAccountChange(Shape):
    """What to change of a service account; absent fields stay."""

    name: Handle = Field(default="", description="absent: stays", validate_default=False)
    teams: Annotated[list[Reference], Field(max_length=100)] = []
    disabled: bool = False


class Principal(Answer):
    """A user or a service account."""

    id: str
    kind: Literal["user", "service_account"]
    name: str
    email: str | None
    role: WorkspaceRole
    teams: list[str] = Field(description="team ids; the first one is charged where nothing else says")
    issuer_id: str | None = Field(serialization_alias="issuer")
    subject: str | None
    is_disabled: bool = Field(serialization_alias="disabled")
    version: int
    created_at: Moment


class NewIssuer(Shape):
    """An issuer of caller tokens to register. (issuer, audience) belongs to one workspace of the deployment."""

    name: Handle
    issuer: Url = Field(examples=["https://login.example.com"])
    audiences: Audiences
    jwks_uri: Url | None = Field(default=None, description="absent, and without `jwks`: discovered at the issuer")
    jwks: Annotated[str, StringConstraints(max_length=100_000)] | None = Field(default=None, description="a JWKS document, JSON")
    algorithms: Annotated[list[Algorithm], Field(min_length=1, max_length=9)] = ["RS256", "ES256", "EdDSA"]
    subject_claim: Text = "sub"
    email_claim: Text | None = None
    groups_claim: Text | None = None
    group_teams: dict[Text, Reference] = Field(default={}, description="group -> team (id or name)")
    admits_unregistered: bool = False
    expiry: Annotated[str, StringConstraints(pattern=r"^(finish-session|hard|grace:[0-9]{1,6})$")] = "finish-session"
    leeway_seconds: Annotated[int, Field(ge=0, le=60)] = 30


class IssuerChange(Shape):
    """What to change of an issuer; absent fields stay. `issuer` itself cannot change: register another."""

    audiences: Audiences = Field(default=["-"], description="absent: stay", validate_default=False)
    jwks_uri: Url | None = None
    jwks: Annotated[str, StringConstraints(max_length=100_000)] | None = None
    algorithms: Annotated[list[Algorithm], Field(min_length=1, max_length=9)] = ["RS256", "ES256", "EdDSA"]
    subject_claim: Text = "sub"
    email_claim: Text | None = None
    groups_claim: Text | None = None
    group_teams: dict[Text, Reference] = {}
    admits_unregistered: bool = False
    expiry: Annotated[str, StringConstraints(pattern=r"^(finish-session|hard|grace:[0-9]{1,6})$")] = "finish-session"
    leeway_seconds: Annotated[int, Field(ge=0, le=60)] = 30


class Issuer(Answer):
    """A registered issuer."""

    id: str
    name: str
    issuer: str
    audiences: list[str]
    jwks_uri: str | None
    has_static_jwks: bool
    algorithms: list[str]
    subject_claim: str
    email_claim: str | None
    groups_claim: str | None
    group_teams: dict[str, str]
    admits_unregistered: bool
    expiry: str
    leeway_seconds: int
    version: int
    created_at: Moment
