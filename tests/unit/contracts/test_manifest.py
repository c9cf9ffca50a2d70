"""A manifest is acted on only if the pinned key signed it and it is not older than what the pod holds."""

import pytest

from contracts import codec, manifest, signing
from contracts.manifest import ManifestRefused
from contracts.secret import Secret
from contracts.signing import SignedBody

KEY = Secret(bytes(range(32)))
OTHER_KEY = Secret(bytes(range(1, 33)))
PUBLIC = signing.public_key_of(KEY)


def test_a_signed_manifest_names_its_chunks_by_hash() -> None:
    opened = manifest.opened(manifest.signed(7, 11, [b"one", b"two"], KEY), [PUBLIC])
    assert (opened.revision, opened.created_at_ms) == (7, 11)
    assert opened.chunks == (
        "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed",
        "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3",
    )


def refusal_of(data: bytes, minimum_revision: int = 0) -> str:
    with pytest.raises(ManifestRefused) as caught:
        manifest.opened(data, [PUBLIC], minimum_revision)
    return caught.value.reason


def test_a_manifest_signed_by_another_key_is_refused() -> None:
    assert refusal_of(manifest.signed(7, 11, [], OTHER_KEY)) == "foreign_key"


def test_a_manifest_whose_body_was_changed_is_refused() -> None:
    envelope = codec.decode(manifest.signed(7, 11, [], KEY), SignedBody)
    forged = codec.decode(manifest.signed(8, 11, [], OTHER_KEY), SignedBody)
    data = codec.encode(SignedBody(body=forged.body, key_id=envelope.key_id, signature=envelope.signature))
    assert refusal_of(data) == "unsigned"


def test_an_older_revision_is_refused() -> None:
    assert refusal_of(manifest.signed(7, 11, [], KEY), minimum_revision=8) == "older_revision"


def test_the_same_revision_is_taken_again() -> None:
    assert manifest.opened(manifest.signed(7, 11, [], KEY), [PUBLIC], minimum_revision=7).revision == 7


def test_bytes_that_are_no_manifest_are_refused() -> None:
    assert refusal_of(b"\xc1garbage") == "undecodable"
