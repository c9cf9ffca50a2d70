"""What the API takes and gives for models and prices."""

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, StringConstraints

from contracts.snapshot import ModelType
from control_plane.kit.shapes import Answer, Moment, Reference, Shape, Subject
from policy.workspace_file import Provider

ModelName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,99}$"),
    Field(description="the provider's own id", examples=["sonic-3"]),
]
Only = Annotated[
    list[Subject],
    Field(max_length=1000, description="these subjects alone; empty: nobody; null: whoever may use the account"),
]
Unit = Literal["characters", "audio_in_ms", "audio_out_ms", "requests"]
Money = Annotated[
    Decimal,
    Field(ge=0, max_digits=30, decimal_places=18, description="per character, per second of audio, or per request"),
    PlainSerializer(lambda price: format(price, "f"), return_type=str),
]


class NewModel(Shape):
    """A model to register in an account."""

    name: ModelName
    type: ModelType
    priority: Annotated[int, Field(ge=0, le=10_000)] | None = Field(default=None, description="null: the account's")
    only: Only | None = None


class ModelChange(Shape):
    """What to change of a model; absent fields stay."""

    priority: Annotated[int, Field(ge=0, le=10_000)] | None = None
    only: Only | None = None


class Model(Answer):
    """A model of an account."""

    id: str
    account_id: str = Field(serialization_alias="account")
    name: str
    type: ModelType
    priority: int | None
    only: list[str] | None = Field(description="subjects with ids; null: whoever may use the account")
    version: int
    created_at: Moment


class NewPrice(Shape):
    """An entry of the price book. It holds from `effective` until a later entry for the same account, model and unit."""

    provider: Provider
    account: Reference | None = Field(default=None, description="null: every account of the provider")
    model: Annotated[str, StringConstraints(pattern=r"^(\*|[a-z0-9][a-z0-9.-]{0,99})$")] = "*"
    unit: Unit
    price: Money = Field(examples=["0.000038"])
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] = "USD"
    effective: Moment | None = Field(default=None, description="null: always")


class Price(Answer):
    """An entry of the price book."""

    id: str
    provider: Provider
    account_id: str | None = Field(serialization_alias="account")
    model: str
    unit: Unit
    price: Money
    currency: str
    effective_ms: int
    created_at: Moment
