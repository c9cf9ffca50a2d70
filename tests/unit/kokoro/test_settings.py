"""Settings come from the environment, and what cannot work is refused with a sentence."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import get_args

import pytest

from kokoro_backend.onnx_engine import HALVES
from kokoro_backend.settings import PrecisionName, Settings, SettingsError

BASE = {"HOME": "/home/someone"}


def test_defaults_are_sagemakers_port_on_loopback_and_the_packaged_weights() -> None:
    settings = Settings.from_env(BASE)
    assert (settings.host, settings.port, settings.weights, settings.engine) == ("127.0.0.1", 8080, None, "onnx")
    assert settings.cache == Path("/home/someone/.cache/glottis/kokoro")
    assert settings.caller_key_digest is None


def test_an_address_that_others_reach_needs_a_caller_key(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="GLOTTIS_KOKORO_KEY_FILE is not set"):
        Settings.from_env(BASE | {"GLOTTIS_KOKORO_LISTEN": "0.0.0.0:8080"})
    key = tmp_path / "key"
    key.write_text("0123456789abcdef\n")
    settings = Settings.from_env(BASE | {"GLOTTIS_KOKORO_LISTEN": "0.0.0.0:8080", "GLOTTIS_KOKORO_KEY_FILE": str(key)})
    assert settings.caller_key_digest == hashlib.sha256(b"0123456789abcdef").digest()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GLOTTIS_KOKORO_LISTEN", "8080"),
        ("GLOTTIS_KOKORO_LISTEN", "127.0.0.1:99999"),
        ("GLOTTIS_KOKORO_THREADS", "0"),
        ("GLOTTIS_KOKORO_THREADS", "two"),
        ("GLOTTIS_KOKORO_ENGINE", "espeak"),
        ("GLOTTIS_KOKORO_PRECISION", "fp16"),
        ("GLOTTIS_KOKORO_BEHIND", "nginx"),
        ("GLOTTIS_KOKORO_KEY_FILE", "/nowhere/key"),
        ("GLOTTIS_KOKORO_QUEUE_LIMIT", "-1"),
    ],
)
def test_a_value_that_cannot_be_used_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        Settings.from_env(BASE | {variable: value})


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("short\n")
    with pytest.raises(SettingsError, match="shorter than 16"):
        Settings.from_env(BASE | {"GLOTTIS_KOKORO_KEY_FILE": str(key)})


@pytest.mark.parametrize(
    ("value", "precision"), [("auto", None), ("int8", "int8"), ("int8+fp32", "int8+fp32"), ("fp32+int8", "fp32+int8")]
)
def test_the_precision_is_one_for_both_halves_or_one_for_each(value: str, precision: str | None) -> None:
    assert Settings.from_env(BASE | {"GLOTTIS_KOKORO_PRECISION": value}).precision == precision


def test_every_precision_of_the_settings_is_one_that_the_engine_knows() -> None:
    assert set(get_args(PrecisionName)) == set(HALVES)


def test_behind_sagemaker_no_key_is_asked_for_since_none_can_be_shown() -> None:
    settings = Settings.from_env(BASE | {"GLOTTIS_KOKORO_LISTEN": "0.0.0.0:8080", "GLOTTIS_KOKORO_BEHIND": "sagemaker"})
    assert (settings.host, settings.caller_key_digest) == ("0.0.0.0", None)
