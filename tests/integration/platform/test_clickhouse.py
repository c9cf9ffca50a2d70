"""The embedded ClickHouse through clickhouse-connect's real HTTP clients, and its raw HTTP where a client hides it."""

from __future__ import annotations

import base64
import datetime
import decimal
import gzip
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import clickhouse_connect
import httpx
import pytest
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError
from clickhouse_connect.driver.external import ExternalData

from contracts.secret import Secret
from glottis.embedded.clickhouse import Clickhouse
from tests.kit.processes import Child
from tests.kit.services import ClickhouseDatabase, clickhouse_server, service_folder

NOON = datetime.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=datetime.UTC)
EVENTS = """
CREATE TABLE events (
    at DateTime64(6, 'UTC'), team LowCardinality(String), cost Decimal(18, 9), characters UInt32,
    labels Map(String, String)
) ENGINE = MergeTree ORDER BY (team, at) SETTINGS non_replicated_deduplication_window = 100
"""
COLUMNS = ["at", "team", "cost", "characters", "labels"]


def event(team: str, characters: int = 1) -> list[object]:
    return [NOON, team, decimal.Decimal("0.000007"), characters, {"k": "v"}]


def http(database: ClickhouseDatabase) -> httpx.Client:
    return httpx.Client(
        base_url=database.url, auth=(database.user, database.password.reveal().decode()), trust_env=False, timeout=30
    )


@pytest.fixture
def server() -> Iterator[tuple[Clickhouse, Child, ClickhouseDatabase]]:
    with service_folder("clickhouse") as folder, clickhouse_server(folder) as (clickhouse, child):
        yield (
            clickhouse,
            child,
            ClickhouseDatabase(
                "default", clickhouse.url, clickhouse.port, "glottis", Secret("test-password"), clickhouse.password_file
            ),
        )


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_restart_and_a_kill_keep_inserted_rows_and_the_tokens_of_their_inserts(
    server: tuple[Clickhouse, Child, ClickhouseDatabase], end: str
) -> None:
    clickhouse, child, database = server
    token = {"insert_deduplication_token": "batch-1"}
    with database.client() as client:
        client.command(EVENTS)
        client.insert("events", [event("a")], column_names=COLUMNS, settings=token)

    if end == "stop":
        assert child.stop() == 0
    else:
        child.kill()
    child.start()
    await child.until(clickhouse.is_ready)

    with database.client() as client:
        client.insert("events", [event("a")], column_names=COLUMNS, settings=token)
        assert client.query("SELECT team FROM events").result_rows == [("a",)]


def test_a_wrong_password_is_refused(clickhouse: Clickhouse) -> None:
    with pytest.raises(DatabaseError, match="AUTHENTICATION_FAILED"):
        clickhouse_connect.get_client(host="127.0.0.1", port=clickhouse.port, username="glottis", password="wrong")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Basic " + base64.b64encode(b"glottis:wrong").decode()},
        {"Authorization": "Basic not-base64"},
        {"Authorization": "Bearer test-password"},
        {"X-ClickHouse-User": "glottis", "X-ClickHouse-Key": "wrong"},
        {"X-ClickHouse-User": "someone", "X-ClickHouse-Key": "test-password"},
    ],
)
def test_every_way_in_asks_for_the_password(clickhouse: Clickhouse, headers: dict[str, str]) -> None:
    answer = httpx.post(clickhouse.url, content="SELECT 1", headers=headers, trust_env=False)

    assert answer.status_code == 403
    assert answer.headers["X-ClickHouse-Exception-Code"] == "516"
    assert "test-password" not in answer.text


def test_the_password_may_come_in_clickhouses_headers(clickhouse: Clickhouse) -> None:
    headers = {"X-ClickHouse-User": "glottis", "X-ClickHouse-Key": "test-password"}

    assert httpx.post(clickhouse.url, content="SELECT 7", headers=headers, trust_env=False).text == "7\n"


@pytest.mark.parametrize("compression", ["lz4", "zstd", "gzip", False])
def test_rows_come_back_as_they_went_in(clickhouse_database: ClickhouseDatabase, compression: str | bool) -> None:
    with clickhouse_database.client(compress=compression) as client:
        client.command(EVENTS)
        summary = client.insert("events", [event("a"), event("b", 2)], column_names=COLUMNS)
        rows = client.query("SELECT * FROM events ORDER BY team", column_oriented=False, query_tz="UTC").result_rows

    assert summary.written_rows == 2
    assert [(team, cost, characters, labels) for _, team, cost, characters, labels in rows] == [
        ("a", decimal.Decimal("0.000007000"), 1, {"k": "v"}),
        ("b", decimal.Decimal("0.000007000"), 2, {"k": "v"}),
    ]
    assert {at.replace(tzinfo=datetime.UTC) for at, *_ in rows} == {NOON}


def test_a_million_rows_are_streamed(clickhouse_database: ClickhouseDatabase) -> None:
    with (
        clickhouse_database.client() as client,
        client.query_row_block_stream("SELECT number, toString(number) FROM numbers(1000000)") as blocks,
    ):
        assert sum(len(block) for block in blocks) == 1_000_000


def test_a_large_insert_is_taken_whole(clickhouse_database: ClickhouseDatabase) -> None:
    with clickhouse_database.client(compress=False) as client:
        client.command("CREATE TABLE wide (text String) ENGINE = MergeTree ORDER BY ()")
        client.insert("wide", [["x" * 1000] for _ in range(20_000)], column_names=["text"])

        assert client.query("SELECT count(), sum(length(text)) FROM wide").result_rows == [(20_000, 20_000_000)]


def test_server_side_parameters_keep_quotes_tabs_and_lines(clickhouse_database: ClickhouseDatabase) -> None:
    text = "a'b\\c\t\n\"é"
    with clickhouse_database.client() as client:
        rows = client.query("SELECT {text:String}, {many:Array(UInt32)}", parameters={"text": text, "many": [1, 2]})

    assert rows.result_rows == [(text, [1, 2])]


@pytest.mark.parametrize(
    ("sql", "name", "status"),
    [
        ("SELECT * FROM nowhere", "UNKNOWN_TABLE", 404),
        ("SELEC 1", "SYNTAX_ERROR", 400),
        ("SELECT 1; SELECT 2", "SYNTAX_ERROR", 400),
        (
            "SELECT sum(sleepEachRow(0.1)) FROM numbers(30) SETTINGS max_execution_time = 1, max_block_size = 1",
            "TIMEOUT_EXCEEDED",
            408,
        ),
        ("CREATE USER someone", "ACCESS_DENIED", 500),
    ],
)
def test_a_failed_query_has_clickhouses_code_name_and_status(
    clickhouse_database: ClickhouseDatabase, sql: str, name: str, status: int
) -> None:
    with http(clickhouse_database) as client:
        answer = client.post("/", content=sql)

    assert answer.status_code == status
    assert name in answer.text
    assert answer.text.startswith(f"Code: {answer.headers['X-ClickHouse-Exception-Code']}. DB::Exception: ")


def test_a_query_that_fails_midway_is_told_to_the_client(clickhouse_database: ClickhouseDatabase) -> None:
    sql = "SELECT throwIf(number = 900000) FROM numbers(1000000)"
    with (
        clickhouse_database.client() as client,
        pytest.raises(ClickHouseError, match="FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
        client.query_rows_stream(sql, settings={"max_block_size": 1000}) as rows,
    ):
        for _ in rows:
            pass


def test_a_query_that_fails_midway_does_not_end_like_a_whole_one(clickhouse_database: ClickhouseDatabase) -> None:
    sql = "SELECT throwIf(number = 900000) FROM numbers(1000000) SETTINGS max_block_size = 1000 FORMAT TSV"
    with http(clickhouse_database) as client, pytest.raises(httpx.RemoteProtocolError):
        client.post("/", content=sql)


def test_a_reader_that_leaves_ends_the_query(clickhouse_database: ClickhouseDatabase) -> None:
    endless = "SELECT number FROM system.numbers FORMAT TSV"
    with http(clickhouse_database) as client:
        with client.stream("POST", "/", content=endless) as answer:
            next(answer.iter_raw())
        still_running = "SELECT count() FROM system.processes WHERE query LIKE 'SELECT number%'"
        deadline = time.monotonic() + 10
        while client.post("/", content=still_running).text != "0\n":
            assert time.monotonic() < deadline


def test_settings_of_a_request_do_not_stay(clickhouse_database: ClickhouseDatabase) -> None:
    asked = "SELECT value FROM system.settings WHERE name = 'max_memory_usage'"
    with clickhouse_database.client(session_id="kept") as client:
        before = client.query(asked).result_rows
        during = client.query(asked, settings={"max_memory_usage": 123456789}).result_rows
        after = client.query(asked).result_rows

    assert during == [("123456789",)]
    assert after == before


def test_a_session_keeps_its_temporary_table(clickhouse_database: ClickhouseDatabase) -> None:
    with clickhouse_database.client(session_id="with-table") as client:
        client.command("CREATE TEMPORARY TABLE mine (x UInt8)")
        client.command("INSERT INTO mine VALUES (7)")

        assert client.query("SELECT x FROM mine").result_rows == [(7,)]


def test_a_session_in_use_is_locked(clickhouse_database: ClickhouseDatabase) -> None:
    with http(clickhouse_database) as client:
        endless = "SELECT number FROM system.numbers FORMAT TSV"
        with client.stream("POST", "/", params={"session_id": "busy"}, content=endless) as answer:
            pieces = answer.iter_raw()  # kept: a forgotten iterator closes the connection, and the server ends the query
            next(pieces)
            second = client.post("/", params={"session_id": "busy"}, content="SELECT 1")

    assert (second.status_code, second.headers["X-ClickHouse-Exception-Code"]) == (500, "373")


def test_a_session_that_must_exist_and_does_not_is_refused(clickhouse_database: ClickhouseDatabase) -> None:
    with http(clickhouse_database) as client:
        answer = client.post("/", params={"session_id": "never", "session_check": "1"}, content="SELECT 1")

    assert answer.headers["X-ClickHouse-Exception-Code"] == "372"


def test_get_is_read_only(clickhouse_database: ClickhouseDatabase) -> None:
    with http(clickhouse_database) as client:
        reading = client.get("/", params={"query": "SELECT 1"})
        writing = client.get("/", params={"query": "CREATE TABLE t (x UInt8) ENGINE = Memory"})

    assert reading.text == "1\n"
    assert (writing.status_code, writing.headers["X-ClickHouse-Exception-Code"]) == (500, "164")


def test_an_unknown_setting_is_refused(clickhouse_database: ClickhouseDatabase) -> None:
    with http(clickhouse_database) as client:
        answer = client.post("/", params={"no_such_setting": "1"}, content="SELECT 1")

    assert (answer.status_code, answer.headers["X-ClickHouse-Exception-Code"]) == (404, "115")


def test_a_setting_cannot_smuggle_sql(clickhouse_database: ClickhouseDatabase) -> None:
    with http(clickhouse_database) as client:
        named = client.post("/", params={"max_threads = 1, readonly": "1"}, content="SELECT 1")
        valued = client.post("/", params={"max_memory_usage": "1', readonly = '1"}, content="SELECT 1")

    assert named.headers["X-ClickHouse-Exception-Code"] == "115"
    assert "X-ClickHouse-Exception-Code" in valued.headers


def test_an_insert_may_be_split_between_query_and_body(clickhouse_database: ClickhouseDatabase) -> None:
    with clickhouse_database.client() as client:
        client.command("CREATE TABLE csv (a UInt32, b String) ENGINE = MergeTree ORDER BY a")
        client.raw_insert("csv", ["a", "b"], b'1,x\n2,"y,z"\n', fmt="CSV")

        assert client.query("SELECT * FROM csv ORDER BY a").result_rows == [(1, "x"), (2, "y,z")]


def test_rows_that_do_not_fit_are_refused_whole(clickhouse_database: ClickhouseDatabase) -> None:
    with http(clickhouse_database) as client:
        database = {"database": clickhouse_database.name}
        client.post("/", params=database, content="CREATE TABLE n (a UInt32) ENGINE = MergeTree ORDER BY a")
        answer = client.post("/", params=database, content="INSERT INTO n FORMAT CSV\n1\n2\nthree\n")
        count = client.post("/", params=database, content="SELECT count() FROM n")

    assert answer.status_code == 400
    assert count.text == "0\n"


def test_a_body_that_is_not_what_its_encoding_says_is_refused(clickhouse_database: ClickhouseDatabase) -> None:
    with http(clickhouse_database) as client:
        broken = client.post("/", content=b"SELECT 1", headers={"Content-Encoding": "gzip"})
        unknown = client.post("/", content=b"SELECT 1", headers={"Content-Encoding": "br"})
        packed = client.post("/", content=gzip.compress(b"SELECT 1"), headers={"Content-Encoding": "gzip"})

    assert broken.headers["X-ClickHouse-Exception-Code"] == "271"
    assert unknown.status_code == 501
    assert packed.text == "1\n"


def test_external_tables_come_with_a_request_and_go_with_it(clickhouse_database: ClickhouseDatabase) -> None:
    table = ExternalData(file_name="wanted", data=b"1\n3\n", fmt="CSV", structure="id UInt32")
    with clickhouse_database.client(session_id="external") as client:
        rows = client.query("SELECT number FROM numbers(5) WHERE number IN (SELECT id FROM wanted)", external_data=table)
        with pytest.raises(DatabaseError, match="UNKNOWN_TABLE"):
            client.query("SELECT * FROM wanted")

    assert rows.result_rows == [(1,), (3,)]


def test_a_command_gives_its_value_and_a_statement_its_summary(clickhouse_database: ClickhouseDatabase) -> None:
    with clickhouse_database.client() as client:
        client.command("CREATE TABLE t (x UInt8) ENGINE = MergeTree ORDER BY x")
        existing = client.command("EXISTS TABLE t")
        inserted = client.command("INSERT INTO t SELECT number FROM numbers(3)")

    assert existing == 1
    assert inserted.written_rows == 3


def test_arrow_goes_out_and_in(clickhouse_database: ClickhouseDatabase) -> None:
    with clickhouse_database.client() as client:
        client.command("CREATE TABLE t (x UInt8) ENGINE = MergeTree ORDER BY x")
        client.command("INSERT INTO t VALUES (1), (2)")
        client.insert_arrow("t", client.query_arrow("SELECT x FROM t"))

        assert client.query("SELECT count() FROM t").result_rows == [(4,)]


def test_one_client_runs_twenty_queries_at_once(clickhouse_database: ClickhouseDatabase) -> None:
    with clickhouse_database.client(autogenerate_session_id=False) as client, ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda number: client.query(f"SELECT {number}").result_rows[0][0], range(20)))

    assert answers == list(range(20))


def test_a_packed_body_that_ends_too_early_is_refused(clickhouse_database: ClickhouseDatabase) -> None:
    packed = gzip.compress(b"INSERT INTO t FORMAT CSV\n" + b"1\n" * 1000)
    with http(clickhouse_database) as client:
        answer = client.post("/", content=packed[:-12], headers={"Content-Encoding": "gzip"})

    assert answer.headers["X-ClickHouse-Exception-Code"] == "271"


def test_a_second_process_on_the_same_folder_is_refused(clickhouse: Clickhouse) -> None:
    second = Clickhouse(clickhouse.home, 0, clickhouse.password_file, clickhouse.environment)
    with service_folder("second") as folder:
        child = Child(second.command(), folder / "log")
        child.start()
        status = child.wait(30)
        output = child.output

    assert status == 2
    assert "one process a data folder" in output
