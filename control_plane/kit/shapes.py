"""Field types and page shapes that every slice's schemas share.

A shape refuses fields that it does not have, so that a misspelt rule is never silently none. Texts hold no control
characters: Postgres takes no NUL, and names stand in logs and tables.
"""

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, StringConstraints

HANDLE_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"

Handle = Annotated[
    str,
    StringConstraints(pattern=HANDLE_PATTERN, max_length=63),
    Field(description="1 to 63 of a-z, 0-9 and inner hyphens; unique in the workspace", examples=["voice"]),
]
Reference = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._:-]+$")]
"""an id or a name"""
NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"
Text = Annotated[str, StringConstraints(max_length=500, pattern=NO_CONTROLS)]
Subject = Annotated[
    str,
    StringConstraints(pattern=r"^(user|service_account|team):[A-Za-z0-9._-]{1,100}$"),
    Field(description="user:<id or name>, service_account:<id or name> or team:<id or name>", examples=["team:voice"]),
]
Voices = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=200)]], Field(max_length=10_000)]
"""approved voice ids"""
Moment = Annotated[
    datetime,
    AfterValidator(lambda moment: moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)),
    PlainSerializer(lambda moment: moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"), return_type=str),
    Field(examples=["2026-11-29T12:00:00.000Z"]),
]


class Shape(BaseModel):
    """What comes in: exactly the fields that are named."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=False)


class Answer(BaseModel):
    """What goes out. `extra="ignore"`: built from rows that hold more, secrets among it, of which only these fields leave."""

    model_config = ConfigDict(extra="ignore", frozen=True)


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    """One page of a list, in the order of ids (which is that of creation). `next_cursor`: absent on the last page."""

    items: list[Item]
    next_cursor: str | None = None


class ProblemDocument(BaseModel):
    """RFC 9457, with a stable `reason`, what to do, and the request's id."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["There is no such thing"])
    status: int = Field(examples=[404])
    detail: str
    reason: str = Field(examples=["not_found"])
    help: str
    request_id: str
    errors: list[dict[str, str | int | None]] | None = None
