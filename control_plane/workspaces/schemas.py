"""What the API takes and gives for a workspace whole."""

from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, StringConstraints

from control_plane.kit.shapes import Answer, Handle, Moment, Reference, Shape, Text


class Bootstrap(Shape):
    """The first owner, by the one-time secret that the control plane was started with."""

    secret: SecretStr = Field(max_length=500)
    workspace: Handle = Field(examples=["acme"])
    name: Text = ""
    owner: Handle = Field(default="owner", description="the name of the user who becomes owner")
    email: Annotated[str, StringConstraints(max_length=254, pattern=r"^[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+$")] | None = None


class Bootstrapped(Answer):
    """The workspace, its owner, and an API token for it, shown once."""

    workspace: str
    owner: str
    token: str
    expires_at: Moment


class Workspace(Answer):
    """The tenant. `workspace` is its id, for ever."""

    workspace: str = Field(serialization_alias="id")
    name: str
    default_accounts: dict[str, str] = Field(serialization_alias="defaults")
    span_sampling: float
    version: int
    created_at: Moment


class WorkspaceChange(Shape):
    """What to change of the workspace; absent fields stay."""

    name: Text = ""
    defaults: dict[Literal["cartesia", "kokoro"], Reference] = {}
    span_sampling: Annotated[float, Field(ge=0, le=1)] = 1.0


class Application(Shape):
    """A workspace file in its JSON form (`policy.workspace_file.to_document`), and the material that it refers to."""

    document: dict[str, Any] = Field(
        description="the workspace file as JSON; see /api/v1/workspace-file/schema",
        examples=[{"version": 1, "workspace": {"id": "acme"}, "teams": [{"name": "voice"}]}],
    )
    material: dict[str, SecretStr] = Field(
        default={}, description="what references of the file stand for, for example `accounts.cartesia-eu.credential.active`"
    )
    prune: bool = Field(default=False, description="delete what the file does not name")
    dry_run: bool = Field(default=False, description="only tell what would change")


class Change(Answer):
    """One thing that changed or would. `fields`: name -> [before, after]; secrets as "changed"."""

    action: Literal["create", "update", "delete"]
    kind: str
    name: str
    fields: dict[str, list[Any]] = {}


class Applied(Answer):
    """What `apply` did, or would do."""

    changes: list[Change]
    is_dry_run: bool
    kept: list[str] = Field(default=[], description="what the file does not name and what stays, because prune was not asked")


class Exported(Answer):
    """The workspace as a workspace file, without credentials."""

    yaml: str


class Rewrapped(Answer):
    """How many stored secrets were moved to the current key-encryption key or fleet key."""

    moved: int


class Pod(Answer):
    """What a gateway pod says of itself, and how far it is behind."""

    pod: str
    version: str
    revision: int
    is_current: bool
    seen_at: Moment
    open_sessions: int
    open_exchanges: int
    is_draining: bool
    spool_bytes: int


class LiveSession(Answer):
    """An open WebSocket session, as its pod told it last. Never holds a text."""

    exchange: str
    pod: str
    user: str
    user_name: str
    team: str
    account: str
    account_name: str
    provider: str
    model: str
    endpoint: str
    since: Moment
    seen_at: Moment
    contexts: int
    characters: int
    audio_in_ms: int


class LiveSessions(Answer):
    """The sessions that are open now, the oldest first. `count` is how many there are, also where fewer are shown."""

    count: int
    sessions: list[LiveSession]


class Pods(Answer):
    """The pods that were heard of in the last minute, and the newest published revision."""

    revision: int
    pods: list[Pod]
