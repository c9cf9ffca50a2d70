"""What the API takes and gives for collaborators."""

from typing import Annotated

from pydantic import Field

from contracts.snapshot import CollaboratorRole
from control_plane.kit.shapes import Answer, Moment, Shape, Subject
from policy.providers.profile import Operation

Operations = Annotated[
    list[Operation], Field(max_length=10, description="granted beyond the role's own", examples=[["voices.write"]])
]


class NewCollaborator(Shape):
    """A user, service account or team to attach to an account."""

    subject: Subject
    role: CollaboratorRole = "user"
    operations: Operations = []


class CollaboratorChange(Shape):
    """What to change of a collaborator; absent fields stay."""

    role: CollaboratorRole = "user"
    operations: Operations = []


class Finding(Answer):
    """One rule that was looked at."""

    rule: str
    effect: str = Field(description="allows, refuses, or does not apply")
    text: str


class Explanation(Answer):
    """What a gateway decides, and every rule that took part, in the order in which they are asked."""

    is_admitted: bool
    reason: str = Field(description="admitted, or the refusal's reason", examples=["admitted"])
    message: str
    endpoint: str
    account: str
    model: str
    team: str
    findings: list[Finding]


class Collaborator(Answer):
    """A subject attached to an account with a role."""

    id: str
    account_id: str = Field(serialization_alias="account")
    subject: str = Field(description="user:<id>, service_account:<id> or team:<id>")
    role: CollaboratorRole
    operations: list[str]
    version: int
    created_at: Moment
