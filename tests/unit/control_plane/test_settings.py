"""The control plane's settings: one plain sentence for each mistake, and no secret in it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from contracts.secret import Secret
from control_plane.settings import Settings, SettingsError


def environment(folder: Path) -> dict[str, str]:
    key = folder / "key"
    key.write_text(base64.b64encode(bytes(32)).decode())
    return {
        "GLOTTIS_PUBLIC_URL": "https://glottis.example/",
        "GLOTTIS_DATABASE_URL": "postgresql://glottis_app:hunter2@db/glottis",
        "GLOTTIS_NATS_URL": "nats://nats:4222",
        "GLOTTIS_KEK_FILE": str(key),
        "GLOTTIS_MANIFEST_KEY_FILE": str(key),
        "GLOTTIS_FLEET_PUBLIC_KEY_FILE": str(key),
    }


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    settings = Settings.from_env(
        {**environment(tmp_path), "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": " http://127.0.0.1:8880 , ,http://kokoro"}
    )
    assert (settings.host, settings.port, settings.public_url) == ("127.0.0.1", 8090, "https://glottis.example")
    assert settings.allowed_origins == ("http://127.0.0.1:8880", "http://kokoro")
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "GLOTTIS_PUBLIC_URL",
            "",
            "GLOTTIS_PUBLIC_URL is not set; set it to the address under which others reach this control plane.",
        ),
        ("GLOTTIS_PUBLIC_URL", "glottis.example", "GLOTTIS_PUBLIC_URL is 'glottis.example'; write https://host[:port][/path]."),
        ("GLOTTIS_DATABASE_URL", "", "GLOTTIS_DATABASE_URL is not set; set it to the application role's postgresql:// address."),
        (
            "GLOTTIS_CONTROL_PLANE_LISTEN",
            "8090",
            "GLOTTIS_CONTROL_PLANE_LISTEN is '8090'; write host:port, for example 127.0.0.1:8090.",
        ),
        ("GLOTTIS_NATS_REPLICAS", "9", "GLOTTIS_NATS_REPLICAS is '9'; write a number from 1 to 5."),
    ],
)
def test_a_wrong_setting_is_one_plain_sentence(tmp_path: Path, name: str, value: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.from_env({**environment(tmp_path), name: value})
    assert str(error.value) == sentence


def test_a_database_url_may_come_from_a_file(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    (tmp_path / "url").write_text(environ.pop("GLOTTIS_DATABASE_URL") + "\n")
    (tmp_path / "owner-url").write_text("postgresql://owner@db/glottis\n")

    settings = Settings.from_env(
        {
            **environ,
            "GLOTTIS_DATABASE_URL_FILE": str(tmp_path / "url"),
            "GLOTTIS_MIGRATION_DATABASE_URL_FILE": str(tmp_path / "owner-url"),
        }
    )

    assert settings.database_url == Secret("postgresql://glottis_app:hunter2@db/glottis")
    assert settings.migration_database_url == Secret("postgresql://owner@db/glottis")


def test_a_database_url_from_two_places_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.from_env({**environment(tmp_path), "GLOTTIS_DATABASE_URL_FILE": str(tmp_path / "url")})
    assert str(error.value) == "GLOTTIS_DATABASE_URL and GLOTTIS_DATABASE_URL_FILE are both set; set one of them."


def test_a_database_url_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    environ = {**environment(tmp_path), "GLOTTIS_DATABASE_URL": "", "GLOTTIS_DATABASE_URL_FILE": "/nowhere/url"}
    with pytest.raises(SettingsError, match="GLOTTIS_DATABASE_URL_FILE names /nowhere/url, which cannot be read"):
        Settings.from_env(environ)


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="GLOTTIS_KEK_FILE names /nowhere/key, which cannot be read"):
        Settings.from_env({**environment(tmp_path), "GLOTTIS_KEK_FILE": "/nowhere/key"})


def test_authorities_of_the_bus_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(SettingsError) as error:
        Settings.from_env({**environment(tmp_path), "GLOTTIS_NATS_CA_FILE": str(tmp_path / "ca.pem")})
    assert str(error.value).endswith("which is not a readable file of certificates. Name a PEM file of authorities.")


def test_the_owner_secret_is_read_anew_each_time_and_a_short_one_is_none(tmp_path: Path) -> None:
    file = tmp_path / "owner.secret"
    settings = Settings.from_env({**environment(tmp_path), "GLOTTIS_OWNER_SECRET_FILE": str(file)})
    assert settings.owner_secret() is None
    file.write_text("short\n")
    assert settings.owner_secret() is None
    file.write_text("a-long-enough-secret\n")
    assert settings.owner_secret() == Secret("a-long-enough-secret")
