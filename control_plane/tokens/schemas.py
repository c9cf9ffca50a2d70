"""What the API takes and gives for tokens. A token's text is shown once, in the answer that made it."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from contracts.claims import METADATA_ENTRIES, METADATA_KEY_CHARACTERS, METADATA_VALUE_CHARACTERS
from control_plane.kit.shapes import NO_CONTROLS, Answer, Moment, Reference, Shape, Subject, Text
from policy.providers.profile import Operation

Audience = Literal["glottis", "glottis-api"]
Kind = Literal["personal", "service_account", "browser"]
Scope = Literal["read", "write", "tokens"]
Lifetime = Annotated[int, Field(ge=60, le=366 * 86_400)]
Origins = Annotated[
    list[Annotated[str, StringConstraints(pattern=r"^https?://[a-zA-Z0-9.-]{1,253}(:[0-9]{1,5})?$")]], Field(max_length=20)
]


Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=METADATA_KEY_CHARACTERS, pattern=NO_CONTROLS)],
        Annotated[str, StringConstraints(max_length=METADATA_VALUE_CHARACTERS, pattern=NO_CONTROLS)],
    ],
    Field(max_length=METADATA_ENTRIES, examples=[{"project": "ivr"}]),
]


class NewToken(Shape):
    """A token to mint. A narrowing that is absent narrows nothing; an empty one admits nothing."""

    principal: Subject = Field(examples=["service_account:phone-agent"], description="whose token it is; not a team")
    audience: Audience = Field(default="glottis", description="glottis: for calls through a gateway; glottis-api: for this API")
    is_browser: bool = Field(default=False, description="a short token for a web page: at most one hour")
    name: Text = ""
    expires_in_seconds: Lifetime | None = Field(
        default=None, description="absent: 90 days for users, 365 for service accounts, 10 minutes for browsers"
    )
    team: Reference | None = Field(default=None, description="the team that the cost goes to; one of the principal's")
    accounts: Annotated[list[Reference], Field(max_length=100)] | None = Field(
        default=None, description="accounts that it may use; one alone is a pin"
    )
    models: Annotated[list[Text], Field(max_length=100)] | None = None
    operations: Annotated[list[Operation], Field(max_length=10)] | None = None
    origins: Origins | None = Field(default=None, description="browser tokens: the web origins that may present it")
    is_single_use: bool = Field(default=False, description="one open session at a time")
    metadata: Metadata | None = Field(
        default=None, description="what each of its calls is annotated with, over what a call says itself; shown in reports"
    )
    scopes: Annotated[list[Scope], Field(max_length=3)] | None = Field(default=None, description="API tokens: what they may do")


class TokenRotation(Shape):
    """How to rotate: the new token works at once, the old one until the overlap is over."""

    overlap_seconds: Annotated[int, Field(ge=0, le=30 * 86_400)] = 3600
    expires_in_seconds: Lifetime | None = None


class Token(Answer):
    """What is kept of a token; never the token."""

    id: str
    principal_id: str = Field(serialization_alias="principal")
    kind: str
    audience: str
    name: str
    team_id: str | None = Field(serialization_alias="team")
    account_ids: list[str] | None = Field(serialization_alias="accounts")
    models: list[str] | None
    operations: list[str] | None
    origins: list[str] | None
    scopes: list[str] | None
    is_single_use: bool
    metadata: dict[str, str] | None
    replaces: str | None
    created_by: str
    created_at: Moment
    expires_at: Moment
    revoke_at: Moment | None
    revoked_at: Moment | None


class MintedToken(Token):
    """A token just minted, with its text: keep it, it is not shown again."""

    token: str
