"""What `glottis up` runs, with which ports, and what it refuses before it starts anything."""

from __future__ import annotations

import datetime
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.secret import Secret
from glottis.embedded.postgres import can_reach, locate_home
from glottis.errors import SetupError
from glottis.files import fetch_material, read_workspace_file
from glottis.first_run import note_workspace_applied, workspace_file, write_workspace_file
from glottis.lock import lock_on
from glottis.parts import parts
from glottis.ports import Ports, chosen_ports, kept_ports
from glottis.processes import Command, Identity
from glottis.stack import Stack, passed_on, prepare_stack
from glottis.welcome import welcome

NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
GIB = 1024**3
PORTS = Ports.from_base(24500)


def prepared(folder: Path, free_bytes: int = 10 * GIB, **environ: str) -> Stack:
    return prepare_stack(folder, PORTS, {"PATH": "/usr/bin", **environ}, NOW, lambda _: free_bytes)


def commands(stack: Stack) -> dict[str, Command]:
    return {part.name: part.command for part in parts(stack)}


def variables(stack: Stack, part: str) -> dict[str, str]:
    return dict(commands(stack)[part].environment)


def files_of_parts(stack: Stack) -> dict[str, list[Path]]:
    """The files in the data folder that each part is told of."""
    return {
        name: [
            Path(value) for value in command.environment.values() if value.startswith(str(stack.folder)) and Path(value).is_file()
        ]
        for name, command in commands(stack).items()
    }


def test_the_parts_start_in_an_order_in_which_each_finds_what_it_needs(tmp_path: Path) -> None:
    assert [part.name for part in parts(prepared(tmp_path))] == [
        "postgres",
        "nats",
        "clickhouse",
        "migrate",
        "control-plane",
        "workspace",
        "aggregator",
        "exporter",
        "kokoro",
        "gateway",
    ]


def test_the_readiness_of_every_part_that_stays_is_that_of_its_own_listener(tmp_path: Path) -> None:
    assert {part.name: part.port for part in parts(prepared(tmp_path)) if not part.runs_once} == {
        "postgres": PORTS.postgres,
        "nats": PORTS.nats,
        "clickhouse": PORTS.clickhouse,
        "control-plane": PORTS.control_plane,
        "aggregator": PORTS.aggregator,
        "exporter": PORTS.exporter,
        "kokoro": PORTS.kokoro,
        "gateway": PORTS.gateway_admin,
    }


def test_a_bus_whose_stream_met_a_full_disk_is_stuck(tmp_path: Path) -> None:
    [nats] = [part for part in parts(prepared(tmp_path)) if part.name == "nats"]
    full = "[1] 2026/11/30 06:01:13 [ERR] Filestore [GLOTTIS_SPANS] Critical write error: write 5.blk: no space left on device"

    assert nats.stuck("[1] 2026/11/30 06:01:12 [INF] Server is ready") is None
    assert "free some space" in str(nats.stuck(full))


def test_the_workspace_is_made_on_the_first_run_only(tmp_path: Path) -> None:
    stack = prepared(tmp_path)
    note_workspace_applied(tmp_path)

    assert "workspace" not in [part.name for part in parts(stack)]


def test_a_part_gets_its_own_keys_and_no_other_ones(tmp_path: Path) -> None:
    stack = prepared(tmp_path)
    keys = {
        name: sorted({Path(value).name for value in command.environment.values() if value.startswith(str(stack.keys.folder))})
        for name, command in commands(stack).items()
    }

    assert keys == {
        "postgres": [],
        "nats": [],
        "clickhouse": ["clickhouse.password"],
        "migrate": ["clickhouse.password"],
        "control-plane": [
            "clickhouse.password",
            "fleet.pub",
            "kek.key",
            "manifest.key",
            "nats-control-plane.seed",
            "owner.secret",
        ],
        "workspace": [],
        "aggregator": ["clickhouse.password", "nats-aggregator.seed"],
        "exporter": ["fleet.key", "nats-exporter.seed"],
        "kokoro": ["kokoro.key"],
        "gateway": ["fleet.key", "manifest.pub", "nats-gateway.seed"],
    }


def test_the_gateway_and_the_aggregator_get_no_database_password(tmp_path: Path) -> None:
    stack = prepared(tmp_path)
    password = stack.keys.postgres_application.read_text().strip()

    holders = [name for name, files in files_of_parts(stack).items() if any(password in file.read_text() for file in files)]

    assert holders == ["migrate", "control-plane"]


def test_only_migrations_act_as_the_owner_of_the_database(tmp_path: Path) -> None:
    stack = prepared(tmp_path)
    password = stack.keys.postgres_owner.read_text().strip()

    holders = [name for name, files in files_of_parts(stack).items() if any(password in file.read_text() for file in files)]

    assert holders == ["migrate"]


def test_no_password_and_no_token_is_in_a_childs_environment_or_arguments(tmp_path: Path) -> None:
    stack = prepared(tmp_path)
    (tmp_path / "client.json").write_text('{"url": "http://127.0.0.1:24502", "token": "glt_owner"}')
    secrets = ["glt_owner", *(file.read_text().strip() for file in stack.keys.folder.iterdir() if file.suffix != ".pub")]

    told = {name: [*command.arguments, *command.environment.values()] for name, command in commands(stack).items()}

    assert "workspace" in told
    assert [name for name, texts in told.items() for text in texts for secret in secrets if secret in text] == []


def test_the_files_with_the_databases_addresses_are_for_their_owner_only(tmp_path: Path) -> None:
    stack = prepared(tmp_path)

    assert stack.application_url_file.read_text().startswith("postgresql://glottis_app:")
    assert stack.owner_url_file.read_text().startswith("postgresql://glottis_owner:")
    for file in (stack.application_url_file, stack.owner_url_file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_gateway_may_dial_kokoro_and_what_the_operator_names(tmp_path: Path) -> None:
    stack = prepared(tmp_path, GLOTTIS_ALLOWED_PRIVATE_ORIGINS="http://10.0.0.5:9000")

    assert variables(stack, "gateway")["GLOTTIS_ALLOWED_PRIVATE_ORIGINS"] == (
        "http://10.0.0.5:9000,http://127.0.0.1:24506,http://127.0.0.1:24502"
    )


def test_children_get_neither_the_operators_secrets_nor_a_proxy() -> None:
    environ = {
        "PATH": "/usr/bin",
        "CARTESIA_API_KEY": "sk_car_x",
        "HTTPS_PROXY": "http://proxy",
        "GLOTTIS_TOKEN": "glt_x",
        "GLOTTIS_DATABASE_URL": "postgresql://someone:else@db/glottis",
        "GLOTTIS_GATEWAY_CONFIG": "gateway.yaml",
        "GLOTTIS_KOKORO_THREADS": "4",
    }

    assert passed_on(environ) == {"PATH": "/usr/bin", "GLOTTIS_KOKORO_THREADS": "4"}


def test_only_the_part_that_fetches_knows_the_way_to_the_registries(tmp_path: Path) -> None:
    stack = prepared(tmp_path, NODE_EXTRA_CA_CERTS="/ca.pem", npm_config_registry="http://r", HTTPS_PROXY="http://proxy")

    holders = [
        name
        for name, command in commands(stack).items()
        if {"NODE_EXTRA_CA_CERTS", "npm_config_registry", "HTTPS_PROXY"} & set(command.environment)
    ]

    assert holders == ["kokoro"]
    assert variables(stack, "kokoro")["npm_config_registry"] == "http://r"


def test_a_second_start_finds_the_same_keys_and_passwords(tmp_path: Path) -> None:
    first, second = prepared(tmp_path), prepared(tmp_path)

    assert commands(second) == commands(first)


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as refusal:
        prepared(tmp_path, free_bytes=200 * 1024**2)

    assert refusal.value.what.endswith("is almost full: 200 MiB are free, 1024 are needed.")
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("taken", "are_kept", "to_do"),
    [
        ("http", False, "Stop that program, or let Glottis use others: --port-base 20000"),
        ("https", True, "Stop that program, or move the gateway: --https-port PORT"),
        (
            "kokoro",
            True,
            "Stop that program: this data folder keeps the ports of its first start. To use others, name another --data-dir.",
        ),
    ],
)
def test_a_port_in_use_is_named_with_its_purpose_and_the_way_out(taken: str, are_kept: bool, to_do: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SetupError) as refusal:
            replace(Ports.from_base(24600), **{taken: port}).ensure_free(are_kept=are_kept)

    assert refusal.value.what == f"In use by another program on 127.0.0.1: port {port} ({taken})."
    assert refusal.value.to_do == to_do


def test_a_new_folder_takes_the_ports_that_the_options_name(tmp_path: Path) -> None:
    assert chosen_ports(tmp_path, None, None, None) == Ports()
    assert chosen_ports(tmp_path, 25000, None, 26000) == replace(Ports.from_base(25000), https=26000)


def test_a_later_start_without_options_uses_the_ports_of_the_first(tmp_path: Path) -> None:
    prepared(tmp_path)

    assert chosen_ports(tmp_path, None, None, None) == Ports.from_base(24500)
    assert chosen_ports(tmp_path, 24500, None, None) == Ports.from_base(24500)


@pytest.mark.parametrize("base", [25000, 24502])
def test_a_start_on_other_ports_than_the_first_is_refused_with_the_kept_ones(tmp_path: Path, base: int) -> None:
    prepared(tmp_path)

    with pytest.raises(SetupError) as refusal:
        chosen_ports(tmp_path, base, None, None)

    assert refusal.value.what == (
        f"{tmp_path} keeps the ports of its first start (http 24500, https 24501, control_plane 24502, gateway_admin 24503, "
        "aggregator 24504, exporter 24505, kokoro 24506, nats 24507, postgres 24508, clickhouse 24509): "
        "its tokens and its Kokoro account name them."
    )
    assert refusal.value.to_do == ("Leave --port-base out (--http-port and --https-port may change), or name another --data-dir.")


def test_the_gateways_public_ports_may_move_and_are_remembered(tmp_path: Path) -> None:
    prepared(tmp_path)

    moved = chosen_ports(tmp_path, None, 24600, None)
    prepare_stack(tmp_path, moved, {"PATH": "/usr/bin"}, NOW, lambda _: 10 * GIB)

    assert moved == replace(Ports.from_base(24500), http=24600)
    assert kept_ports(tmp_path) == moved


def test_damaged_ports_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text('{"http": "eighty"}')

    with pytest.raises(SetupError) as refusal:
        chosen_ports(tmp_path, None, None, None)

    assert refusal.value.what == f"{tmp_path}/ports.json cannot be read as ports."


@pytest.mark.parametrize(
    ("http", "https", "named"),
    [(9000, 9000, "9000 (http), 9000 (https)"), (8090, None, "8090 (http), 8090 (control_plane)")],
)
def test_one_port_for_two_listeners_is_refused(tmp_path: Path, http: int, https: int | None, named: str) -> None:
    with pytest.raises(SetupError) as refusal:
        chosen_ports(tmp_path, None, http, https)

    assert refusal.value.what == f"Two listeners cannot share a port: {named}."


def test_a_port_base_counts_up_in_the_documented_order() -> None:
    assert Ports.from_base(20000) == Ports(
        http=20000,
        https=20001,
        control_plane=20002,
        gateway_admin=20003,
        aggregator=20004,
        exporter=20005,
        kokoro=20006,
        nats=20007,
        postgres=20008,
        clickhouse=20009,
    )


@pytest.mark.parametrize("base", [0, -1, 65530, 100000])
def test_a_port_base_without_room_is_refused(base: int) -> None:
    with pytest.raises(SetupError, match="leaves no room for 10 ports"):
        Ports.from_base(base)


def test_two_runs_on_one_folder_are_refused_by_the_pid_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with lock_on(folder), pytest.raises(SetupError) as refusal, lock_on(folder):
        pass

    assert refusal.value.what == f"Another `glottis up` (pid {os.getpid()}) uses {folder}."
    with lock_on(folder):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SetupError) as refusal, lock_on(tmp_path / "file" / "data"):
        pass

    assert refusal.value.what.startswith(f"Cannot write the data folder {tmp_path}/file/data: ")


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ('{"step": "Assembling the model ...", "event": "preparing weights"}', "Assembling the model ..."),
        ("[info] preparing weights  step='Fetching the voices ...'", "Fetching the voices ..."),
        ('{"event": "listening"}', None),
    ],
)
def test_the_speech_models_preparation_is_told_step_by_step(tmp_path: Path, line: str, step: str | None) -> None:
    kokoro = next(part for part in parts(prepared(tmp_path)) if part.name == "kokoro")

    assert kokoro.progress(line) == step


def test_a_folder_is_reachable_only_if_every_one_above_it_is(tmp_path: Path) -> None:
    stranger = Identity(user_id=65000, group_id=65000)
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent, tmp_path):
        folder.chmod(0o711)

    assert can_reach(inner, stranger, above=tmp_path.parent)
    inner.parent.chmod(0o700)
    assert not can_reach(inner, stranger, above=tmp_path.parent)


def test_the_database_stays_where_its_first_start_put_it(tmp_path: Path) -> None:
    stranger = Identity(user_id=65000, group_id=65000)
    data = tmp_path / "closed"
    data.mkdir(mode=0o700)

    first = locate_home(data, stranger, shared_home=tmp_path / "shared")
    data.chmod(0o755)
    second = locate_home(data, stranger, shared_home=tmp_path / "shared")

    assert first.parent == tmp_path / "shared"
    assert second == first


def test_the_database_moves_with_the_data_folder(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()

    assert locate_home(old, None) == old / "postgres"
    assert locate_home(old.rename(tmp_path / "new"), None) == tmp_path / "new" / "postgres"


def test_a_database_that_was_moved_out_of_its_users_reach_is_told(tmp_path: Path) -> None:
    (tmp_path / "postgres-home").write_text("postgres\n")
    tmp_path.chmod(0o700)

    with pytest.raises(SetupError) as refusal:
        locate_home(tmp_path, Identity(user_id=65000, group_id=65000))

    assert refusal.value.what == f"The database in {tmp_path}/postgres runs as another user, who cannot reach it."


def test_a_used_folder_whose_database_is_gone_stops_the_start_and_gets_no_new_one(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text("{}")
    (tmp_path / "postgres-home").write_text(f"{tmp_path}/elsewhere/data-1\n")

    with pytest.raises(SetupError) as refusal:
        prepared(tmp_path)

    assert refusal.value.what == f"The database that was made before is not in {tmp_path}/elsewhere/data-1/data."
    assert not (tmp_path / "elsewhere").exists()


def test_a_database_that_vanishes_while_the_stack_runs_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "postgres-home").write_text(f"{tmp_path}/database\n")
    stack = prepared(tmp_path)
    note_workspace_applied(tmp_path)

    with pytest.raises(SetupError, match="The database that was made before is not in "):
        stack.postgres.prepare()

    assert not (tmp_path / "database").exists()


def test_the_first_workspace_names_its_credential_by_a_path_that_survives_a_move(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    write_workspace_file(prepared(old))

    file = workspace_file(old.rename(tmp_path / "new"))
    material = fetch_material(file, read_workspace_file(file), {})

    assert "credential: file:keys/kokoro.key " in file.read_text()
    assert [secret.reveal().decode() for secret in material.values()] == [
        (tmp_path / "new" / "keys" / "kokoro.key").read_text().strip()
    ]


def test_the_data_folder_lets_others_through_and_not_in_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with lock_on(tmp_path / "data"):
            pass
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o711


def test_the_database_is_in_the_data_folder_where_nobody_else_must_reach_it(tmp_path: Path) -> None:
    assert locate_home(tmp_path, None) == tmp_path / "postgres"


def test_a_terminal_shows_the_callers_token_and_a_log_the_file_that_holds_it(tmp_path: Path) -> None:
    stack, token = prepared(tmp_path), Secret("glt_secret")

    assert "  token          glt_secret\n" in welcome(stack, token, shows_token=True)
    logged = welcome(stack, token, shows_token=False)
    assert f"  token          in {tmp_path}/caller.json\n" in logged
    assert "glt_secret" not in logged
