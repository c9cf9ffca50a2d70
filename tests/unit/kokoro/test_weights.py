"""Weights are found, checked by hash, and what is missing is said plainly. No test here reaches a registry."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from kokoro_backend import weights
from kokoro_backend.voices import STYLE_BYTES
from kokoro_backend.weights import WeightsError, own_weights, packaged_vocab, packaged_weights, voice_hashes


def silent(line: str) -> None:
    del line


def test_the_vocabulary_and_the_voices_are_those_of_version_one() -> None:
    assert len(packaged_vocab()) == 114
    assert max(packaged_vocab().values()) < 178
    assert len(voice_hashes()) == 54


def test_own_weights_need_one_graph_and_voices(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"holds 0 .onnx files"):
        own_weights(tmp_path)
    (tmp_path / "kokoro-fp32.onnx").write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"holds no voices"):
        own_weights(tmp_path)
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "af_own.bin").write_bytes(bytes(STYLE_BYTES))
    found = own_weights(tmp_path)
    assert (found.model, found.voices) == (tmp_path / "kokoro-fp32.onnx", tmp_path / "voices")
    assert found.vocab == packaged_vocab()


def test_a_checkpoint_is_taken_by_the_engine_that_reads_one(tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "af_own.bin").write_bytes(bytes(STYLE_BYTES))
    (tmp_path / "kokoro-v1_0.onnx").write_bytes(b"x")
    assert own_weights(tmp_path, (".pth", ".onnx")).model == tmp_path / "kokoro-v1_0.onnx"
    (tmp_path / "kokoro-v1_0.pth").write_bytes(b"x")
    assert own_weights(tmp_path, (".pth", ".onnx")).model == tmp_path / "kokoro-v1_0.pth"
    assert own_weights(tmp_path).model == tmp_path / "kokoro-v1_0.onnx"
    (tmp_path / "another.pth").write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"holds 2 .pth files: name one of them model.pth"):
        own_weights(tmp_path, (".pth", ".onnx"))


def test_a_vocabulary_of_ones_own_is_read_and_a_broken_one_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "af_own.bin").write_bytes(bytes(STYLE_BYTES))
    (tmp_path / "config.json").write_text(json.dumps({"vocab": {"a": 1}}))
    assert own_weights(tmp_path).vocab == {"a": 1}
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"no usable .vocab."):
        own_weights(tmp_path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"GLOTTIS_KOKORO_WEIGHTS names .*nowhere"):
        own_weights(tmp_path / "nowhere")


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MODEL_PARTS", ("no_such_package_1",))
    with pytest.raises(WeightsError, match=r"not installed .no_such_package_1.*kokoro-weights"):
        packaged_weights(tmp_path, silent)


def test_a_model_with_another_hash_is_not_used_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MODEL_SHA256", "0" * 64)
    with pytest.raises(WeightsError, match=r"expected SHA-256"):
        packaged_weights(tmp_path, silent)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_with_the_space_that_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weights, "_assemble_model", full)
    with pytest.raises(WeightsError, match=r"is full: .* need about 600 MB"):
        packaged_weights(tmp_path, silent)


def test_without_any_npm_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "npm_command", lambda: None)
    monkeypatch.setattr(weights, "_assemble_model", lambda *_: None)
    with pytest.raises(WeightsError, match=r"no npm was found"):
        packaged_weights(tmp_path, silent)


def test_npms_failure_is_told_by_its_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "npm"
    failing.write_text("#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\necho more >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr(weights, "npm_command", lambda: [str(failing)])
    monkeypatch.setattr(weights, "_assemble_model", lambda *_: None)
    with pytest.raises(WeightsError, match=r"npm could not fetch kokoro-js@1.2.1: npm error code ENOTFOUND$"):
        packaged_weights(tmp_path / "cache", silent)


def test_another_tarball_than_the_pinned_one_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forging = tmp_path / "npm"
    forging.write_text('#!/bin/sh\necho forged > "$4/kokoro-js-1.2.1.tgz"\n')
    forging.chmod(0o755)
    monkeypatch.setattr(weights, "npm_command", lambda: [str(forging)])
    monkeypatch.setattr(weights, "_assemble_model", lambda *_: None)
    with pytest.raises(WeightsError, match=r"another SHA-256"):
        packaged_weights(tmp_path / "cache", silent)
    assert not (tmp_path / "cache" / f"voices-{weights.VOICES_TARBALL_SHA256[:12]}").exists()
