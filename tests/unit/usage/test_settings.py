"""What an operator may set, and what a wrong value says."""

from pathlib import Path

import pytest

from control_plane.aggregator.settings import Settings, SettingsError

GOOD = {"GLOTTIS_NATS_URL": "nats://127.0.0.1:4222", "GLOTTIS_CLICKHOUSE_URL": "http://127.0.0.1:8123"}


def test_the_least_that_must_be_set() -> None:
    settings = Settings.from_env(GOOD)
    assert settings.listen == ("127.0.0.1", 9464)
    assert (settings.clickhouse.url, settings.clickhouse.database) == ("http://127.0.0.1:8123", "glottis")


def test_a_path_in_clickhouses_url_names_the_database() -> None:
    settings = Settings.from_env({**GOOD, "GLOTTIS_CLICKHOUSE_URL": "https://ch.example:8443/usage"})
    assert (settings.clickhouse.url, settings.clickhouse.database) == ("https://ch.example:8443", "usage")


def test_secrets_are_read_from_files_and_do_not_print(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    settings = Settings.from_env({**GOOD, "GLOTTIS_CLICKHOUSE_PASSWORD_FILE": str(tmp_path / "password")})
    assert settings.clickhouse.password.reveal() == b"hunter2"
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GLOTTIS_NATS_URL", ""),
        ("GLOTTIS_CLICKHOUSE_URL", ""),
        ("GLOTTIS_CLICKHOUSE_URL", "http://user:hunter2@host:8123"),
        ("GLOTTIS_CLICKHOUSE_URL", "http://host:8123/x; DROP DATABASE y"),
        ("GLOTTIS_CLICKHOUSE_PASSWORD_FILE", "/nowhere/password"),
        ("GLOTTIS_NATS_SEED_FILE", "/nowhere/seed"),
        ("GLOTTIS_NATS_CA_FILE", "/nowhere/ca"),
        ("GLOTTIS_NATS_CA_FILE", __file__),
        ("GLOTTIS_AGGREGATOR_LISTEN", "9464"),
        ("GLOTTIS_AGGREGATOR_LISTEN", "127.0.0.1:99999"),
        ("GLOTTIS_AGGREGATOR_ACK_WAIT_SECONDS", "soon"),
        ("GLOTTIS_AGGREGATOR_LINGER_SECONDS", "0"),
    ],
)
def test_a_wrong_value_is_told_by_the_name_of_its_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingsError) as told:
        Settings.from_env({**GOOD, variable: value})
    assert variable in str(told.value)
    assert "hunter2" not in str(told.value)
