"""Bytes from and to the shapes of this package.

MessagePack for what machines read in bulk (snapshot chunks, events). Unknown fields are ignored, so that an older reader
takes a newer writer's additions; a schema number that the reader does not know is refused, because its meaning changed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_PLAIN_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODERS: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


class Undecodable(ValueError):
    """The bytes are not the shape that was asked for."""


class UnsupportedSchema(Undecodable):
    """Written by a newer release whose shape this one does not know."""


def encode(value: msgspec.Struct) -> bytes:
    """Return the value as MessagePack; equal values give equal bytes (chunks are named by their hash)."""
    return _ENCODER.encode(value)


def encode_fields(fields: Mapping[str, Any]) -> bytes:
    """Return MessagePack that decodes as every shape whose fields are among these. Any: values that a shape may hold."""
    return _ENCODER.encode(fields)


def encode_row(values: Sequence[Any]) -> bytes:
    """Return the MessagePack of a shape without names, given what it is an array of: its tag, then its fields in order.

    Making the shape first would cost several times as much. Any: values that a shape may hold.
    """
    return _PLAIN_ENCODER.encode(values)


def is_row(data: bytes | memoryview) -> bool:
    """Tell whether the bytes begin an array of up to 65,535 elements, that is, a shape without names."""
    return bool(first := data[:1]) and (0x90 <= first[0] <= 0x9F or first[0] == 0xDC)


def decode(data: bytes | memoryview, shape: type[T]) -> T:
    """Return the value that the bytes hold.

    Raises UnsupportedSchema if the value carries a `schema` above the newest that its type declares, Undecodable if the
    bytes are anything else but that shape. The cause is kept for the log; it never holds field values.
    """
    decoder = _DECODERS.get(shape)
    if decoder is None:
        decoder = _DECODERS[shape] = msgspec.msgpack.Decoder(shape)
    try:
        value: T = decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"not a {getattr(shape, '__name__', shape)}") from error
    newest = getattr(type(value), "SCHEMA", None)  # shape may be a union
    if newest is not None and getattr(value, "schema", newest) > newest:
        raise UnsupportedSchema(f"{getattr(shape, '__name__', shape)} schema {value.schema}, newest known is {newest}")  # type: ignore[attr-defined]
    return value
