"""What the codec accepts and refuses."""

import msgspec
import pytest

from contracts import codec
from contracts.events import PodStatus
from contracts.manifest import Manifest


class NewerManifest(msgspec.Struct, kw_only=True):
    schema: int = 2
    revision: int
    created_at_ms: int
    chunks: tuple[str, ...]


class ManifestWithAddition(msgspec.Struct, kw_only=True):
    revision: int
    created_at_ms: int
    chunks: tuple[str, ...]
    added_later: str


def test_a_newer_schema_is_refused_by_name() -> None:
    data = codec.encode(NewerManifest(revision=1, created_at_ms=2, chunks=()))
    with pytest.raises(codec.UnsupportedSchema, match="Manifest schema 2, newest known is 1"):
        codec.decode(data, Manifest)


def test_a_field_that_was_added_later_is_ignored() -> None:
    data = codec.encode(ManifestWithAddition(revision=1, created_at_ms=2, chunks=(), added_later="x"))
    assert codec.decode(data, Manifest) == Manifest(revision=1, created_at_ms=2, chunks=())


@pytest.mark.parametrize("data", [b"", b"\xc1", b"{}", b"\x93\x01\x02\x03", b"\x81\xa3pod\x01"])
def test_other_bytes_are_undecodable_and_the_error_shows_none_of_them(data: bytes) -> None:
    with pytest.raises(codec.Undecodable, match=r"\Anot a PodStatus\Z"):
        codec.decode(data, PodStatus)
