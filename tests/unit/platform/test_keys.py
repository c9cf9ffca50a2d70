"""The keys of an installation: what the first run makes, what a later run refuses."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from contracts import manifest, sealing
from contracts.secret import Secret
from contracts.snapshot import Sealed
from contracts.subjects import ROLES
from glottis.errors import SetupError
from glottis.keys import ensure_keys, nats_public_key, read


def test_the_first_run_makes_every_key_and_a_later_one_keeps_them(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    before = {path.name: path.read_bytes() for path in keys.folder.iterdir()}

    ensure_keys(tmp_path)

    assert {path.name: path.read_bytes() for path in keys.folder.iterdir()} == before
    assert sorted(before) == [
        "clickhouse.password",
        "fleet.key",
        "fleet.pub",
        "kek.key",
        "kokoro.key",
        "manifest.key",
        "manifest.pub",
        "nats-aggregator.seed",
        "nats-control-plane.seed",
        "nats-exporter.seed",
        "nats-gateway.seed",
        "owner.secret",
        "postgres-application.password",
        "postgres-owner.password",
        "postgres-superuser.password",
    ]
    assert len(set(before.values())) == len(before)


def test_only_the_owner_of_the_files_may_read_them(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)

    assert stat.S_IMODE(keys.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys.folder.iterdir()} == {0o600}


def test_the_manifest_keys_sign_and_check(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    private, public = (base64.b64decode(read(path).reveal()) for path in (keys.manifest_private, keys.manifest_public))

    published = manifest.signed(3, 0, [b"chunk"], Secret(private))

    assert manifest.opened(published, [public]).revision == 3


def test_the_fleet_keys_seal_and_open(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    private, public = (base64.b64decode(read(path).reveal()) for path in (keys.fleet_private, keys.fleet_public))

    box: Sealed = sealing.sealed(Secret("credential"), 1, public, b"purpose")

    assert sealing.opened(box, {sealing.fleet_key_id(public): Secret(private)}, b"purpose") == Secret("credential")


@pytest.mark.parametrize("role", sorted(ROLES))
def test_every_bus_role_has_a_seed(tmp_path: Path, role: str) -> None:
    assert nats_public_key(read(ensure_keys(tmp_path).nats_seed(role))).startswith("U")


def test_a_lost_key_is_named_and_never_replaced(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    keys.kek.unlink()

    with pytest.raises(SetupError) as refusal:
        ensure_keys(tmp_path)

    assert refusal.value.what == f"{keys.folder} lacks kek.key."
    assert "backup" in refusal.value.to_do
    assert not keys.kek.exists()


def test_a_first_run_that_was_cut_short_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "keys.unfinished").mkdir()
    (tmp_path / "keys.unfinished" / "kek.key").write_text("half")

    keys = ensure_keys(tmp_path)

    assert len(base64.b64decode(read(keys.kek).reveal())) == 32
    assert not (tmp_path / "keys.unfinished").exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SetupError) as refusal:
        ensure_keys(tmp_path / "file")

    assert refusal.value.what.startswith(f"Cannot write {tmp_path}/file/keys: ")
