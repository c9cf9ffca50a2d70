"""The gateway's settings: what is wrong is said with the variable's name."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from gateway.settings import Address, Settings, SettingsError


@pytest.fixture
def complete(tmp_path: Path) -> dict[str, str]:
    public_key, fleet_key, seed = tmp_path / "manifest.pub", tmp_path / "fleet.key", tmp_path / "seed"
    public_key.write_bytes(base64.b64encode(b"m" * 32))
    fleet_key.write_bytes(
        b"# the old one goes after the change\n" + base64.b64encode(b"a" * 32) + b"\n" + base64.b64encode(b"b" * 32)
    )
    seed.write_text("SUA\n")
    return {
        "GLOTTIS_NATS_URL": "nats://127.0.0.1:4222",
        "GLOTTIS_NATS_SEED_FILE": str(seed),
        "GLOTTIS_MANIFEST_PUBLIC_KEY_FILE": str(public_key),
        "GLOTTIS_FLEET_KEY_FILE": str(fleet_key),
        "GLOTTIS_GATEWAY_SPOOL_DIR": str(tmp_path / "spool"),
        "GLOTTIS_GATEWAY_STATE_DIR": str(tmp_path / "state"),
    }


def test_a_complete_environment_gives_settings(complete: dict[str, str]) -> None:
    settings = Settings.from_env(complete | {"GLOTTIS_GATEWAY_LISTEN": "[::1]:0", "GLOTTIS_POD_NAME": "pod.7"})

    assert settings.listen == Address("::1", 0)
    assert settings.pod_token == "pod_7"
    assert settings.feed is not None
    assert settings.feed.manifest_keys == (b"m" * 32,)
    assert [key.reveal() for key in settings.feed.fleet_keys] == [b"a" * 32, b"b" * 32]
    assert settings.max_config_age_seconds == 3600


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("GLOTTIS_NATS_URL", "", "GLOTTIS_NATS_URL is not set"),
        ("GLOTTIS_GATEWAY_STATE_DIR", "", "GLOTTIS_GATEWAY_STATE_DIR is not set"),
        ("GLOTTIS_GATEWAY_SPOOL_DIR", "", "GLOTTIS_GATEWAY_SPOOL_DIR is not set"),
        ("GLOTTIS_GATEWAY_LISTEN", "8080", "GLOTTIS_GATEWAY_LISTEN is '8080': write it as host:port"),
        ("GLOTTIS_GATEWAY_LISTEN", "127.0.0.1:99999", "write it as host:port"),
        ("GLOTTIS_GATEWAY_TLS_LISTEN", "127.0.0.1:0", "needs GLOTTIS_GATEWAY_TLS_CERT"),
        ("GLOTTIS_GATEWAY_SPOOL_BYTES", "many", "GLOTTIS_GATEWAY_SPOOL_BYTES is 'many': write a number"),
        ("GLOTTIS_GATEWAY_MAX_CONFIG_AGE_SECONDS", "nan", "write a number"),
        ("GLOTTIS_MANIFEST_PUBLIC_KEY_FILE", "/nonexistent/key", "GLOTTIS_MANIFEST_PUBLIC_KEY_FILE cannot be read"),
        ("GLOTTIS_GATEWAY_ROOT_MOUNTS", "voice.test=nobody", "write host=provider"),
        ("GLOTTIS_GATEWAY_JUDGED_BODY_BYTES", "-1", "GLOTTIS_GATEWAY_JUDGED_BODY_BYTES is '-1': write a number"),
        ("GLOTTIS_LOG_LEVEL", "loud", "GLOTTIS_LOG_LEVEL is 'loud'"),
    ],
)
def test_a_wrong_variable_is_named(complete: dict[str, str], name: str, value: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        Settings.from_env(complete | {name: value})


def test_a_key_that_is_no_key_is_not_quoted(complete: dict[str, str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.key"
    bad.write_text("c2VjcmV0")

    with pytest.raises(SettingsError, match=r"GLOTTIS_FLEET_KEY_FILE, line 1 of .*bad.key, is not a raw 32-byte key") as raised:
        Settings.from_env(complete | {"GLOTTIS_FLEET_KEY_FILE": str(bad)})

    assert "c2VjcmV0" not in str(raised.value)


def test_limits_and_root_mounts_have_variables_of_their_names(complete: dict[str, str]) -> None:
    settings = Settings.from_env(
        complete
        | {
            "GLOTTIS_GATEWAY_JUDGED_BODY_BYTES": "2048",
            "GLOTTIS_GATEWAY_STALL_SECONDS": "7.5",
            "GLOTTIS_GATEWAY_UPSTREAM_WARM_CONNECTIONS": "8",
            "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": "http://127.0.0.1:1, http://127.0.0.1:2",
            "GLOTTIS_GATEWAY_ROOT_MOUNTS": "Voice.test=cartesia, kokoro.test=kokoro",
        }
    )

    assert (settings.limits.judged_body_bytes, settings.limits.stall_seconds) == (2048, 7.5)
    assert (settings.pool.warm_connections, settings.pool.idle_seconds) == (8, 55.0)
    assert settings.pool.allowed_private_origins == {"http://127.0.0.1:1", "http://127.0.0.1:2"}
    assert settings.root_mounts == {b"voice.test": "cartesia", b"kokoro.test": "kokoro"}


def test_a_file_alone_needs_nothing_else(tmp_path: Path) -> None:
    settings = Settings.from_env({"GLOTTIS_GATEWAY_CONFIG": str(tmp_path / "gateway.yaml")})

    assert (settings.feed, settings.spool_folder) == (None, None)
