"""Client commands as processes, with a real broker."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.process import (
    FREE_PORT,
    PENSTOCK,
    WAIT_SECONDS,
    Broker,
    clean_environment,
)

FULL = "tenants/default/namespaces/default/topics"


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Shell:
    """Runs `penstock` with a broker that it finds by the environment."""

    def __init__(self, broker: Broker) -> None:
        self._environ = clean_environment({"PENSTOCK_URL": f"http://127.0.0.1:{broker.port}"})

    def __call__(self, *arguments: str, text: str = "") -> Done:
        done = subprocess.run(
            [PENSTOCK, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            env=self._environ,
        )
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with Broker("--data", str(tmp_path_factory.mktemp("cli")), *FREE_PORT) as broker:
        yield Shell(broker)


@pytest.mark.feature("F27")
def test_a_topic_is_created_listed_shown_and_deleted(shell: Shell) -> None:
    columns = ("id:int64", "customer:string", "total:float64?")
    made = shell("topic", "create", "orders", *columns, "--partition", "customer")
    assert made == Done(0, f"created {FULL}/orders\n", "")
    assert "orders" in shell("topic", "list").out.splitlines()
    shown = shell("topic", "info", "orders").out.splitlines()
    assert shown[:5] == [
        f"Topic: {FULL}/orders",
        "Columns: id:int64 customer:string total:float64?",
        "Partition column: customer",
        "Durability: fsync",
        "Retention: keeps everything",
    ]
    again = shell("topic", "create", "orders")
    assert (again.code, again.out) == (1, "")
    assert again.err == f"error: topic {FULL}/orders exists already\n"
    assert shell("topic", "delete", "orders") == Done(0, f"deleted {FULL}/orders\n", "")
    gone = shell("topic", "info", "orders")
    assert (gone.code, gone.err) == (1, f"error: topic {FULL}/orders does not exist\n")


@pytest.mark.feature("F27")
def test_tenants_and_namespaces(shell: Shell) -> None:
    assert shell("tenant", "create", "acme").out == "created tenants/acme\n"
    assert shell("namespace", "create", "acme/eu").out == "created tenants/acme/namespaces/eu\n"
    assert shell("namespace", "list", "acme").out == "eu\n"
    in_use = shell("tenant", "delete", "acme")
    assert in_use.code == 1
    assert in_use.err.startswith("error: tenant tenants/acme")
    assert shell("topic", "create", "t", "--namespace", "acme/eu").code == 0
    assert shell("topic", "list", "--namespace", "acme/eu").out == "t\n"
    assert shell("topic", "delete", "acme/eu/t").code == 0
    assert shell("namespace", "delete", "acme/eu").code == 0
    assert shell("tenant", "delete", "acme").out == "deleted tenants/acme\n"
    assert "acme" not in shell("tenant", "list").out.splitlines()


@pytest.mark.feature("F28", "F29")
def test_pushed_rows_are_printed_in_the_seed_s_format(shell: Shell) -> None:
    shell("topic", "create", "score", "first_name:string", "score:int64")
    rows = ['{"first_name":"Ada","score":92}', '{"first_name":"Grace","score":7}']
    assert shell("push", "score", *rows) == Done(0, "SUCCESS 0 - 1\n", "")
    fetched = shell("fetch", "--topic", "score", "--offset", "0")
    assert fetched == Done(
        0,
        f"Topic: {FULL}/score, Partition: None, Start: 0, End: 1\n"
        "\n"
        "+------------+-------+\n"
        "| first_name | score |\n"
        "+------------+-------+\n"
        "| Ada        | 92    |\n"
        "| Grace      | 7     |\n"
        "+------------+-------+\n",
        "",
    )
    limited = shell("fetch", "--topic", "score", "--offset", "0", "--max-messages", "1", "--json")
    assert json.loads(limited.out) == {"first_name": "Ada", "score": 92}


@pytest.mark.feature("F28", "F13")
def test_a_fetch_at_the_end_returns_after_the_timeout(shell: Shell) -> None:
    shell("topic", "create", "empty")
    fetched = shell("fetch", "--topic", "empty", "--offset", "3", "--timeout", "20")
    place = f"Topic: {FULL}/empty, Partition: None"
    assert fetched == Done(0, f"{place}, Start: 3, End: 3\n\n", "")


@pytest.mark.feature("F28")
def test_an_error_has_the_seed_s_format(shell: Shell) -> None:
    fetched = shell("fetch", "--topic", "missing", "--offset", "0")
    assert (fetched.code, fetched.out) == (1, "")
    assert fetched.err == (
        f"Topic: {FULL}/missing, Partition: None, Error: topic {FULL}/missing does not exist\n"
    )


@pytest.mark.feature("F26", "F28")
def test_partitions(shell: Shell) -> None:
    shell("topic", "create", "regions", "id:int64", "place:string", "--partition", "place")
    rows = [f'{{"id":{i},"place":"{"eu" if i % 2 else "us"}"}}' for i in range(5)]
    pushed = shell("push", "regions", *rows)
    assert pushed.code == 0, pushed.err
    assert sorted(pushed.out.splitlines()) == [
        "SUCCESS 0 - 1 partition eu",
        "SUCCESS 0 - 2 partition us",
    ]
    given = shell("push", "regions", '{"id":7}', "--partition-value", "eu")
    assert given == Done(0, "SUCCESS 2 - 2\n", "")
    fetched = shell("fetch", "--topic", "regions", "--offset", "1", "--partition-value", "eu")
    assert fetched.out == (
        f"Topic: {FULL}/regions, Partition: eu, Start: 1, End: 2\n"
        "\n"
        "+----+\n"
        "| id |\n"
        "+----+\n"
        "| 3  |\n"
        "| 7  |\n"
        "+----+\n"
    )
    without = shell("fetch", "--topic", "regions", "--offset", "0")
    assert without.code == 1
    assert "Error: topic" in without.err
    listed = json.loads(shell("topic", "info", "regions", "--json").out)["partitions"]
    assert {(p["partition_value"]["String"], p["next_offset"]) for p in listed} == {
        ("us", 3),
        ("eu", 3),
    }


@pytest.mark.feature("F29")
def test_files_and_standard_input(shell: Shell, tmp_path: Path) -> None:
    shell("topic", "create", "files", "id:int64", "name:string?")
    table = pa.table({"id": [1, 2], "name": ["a", None]})
    (tmp_path / "a.jsonl").write_text('{"id":1,"name":"a"}\n\n{"id":2}\n')
    pq.write_table(table, tmp_path / "a.parquet")
    for name, begin in (("a.arrow", pa.ipc.new_file), ("a.arrows", pa.ipc.new_stream)):
        with begin(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table)
    for number, name in enumerate(["a.jsonl", "a.parquet", "a.arrow", "a.arrows"]):
        pushed = shell("push", "files", "--file", str(tmp_path / name))
        assert pushed == Done(0, f"SUCCESS {2 * number} - {2 * number + 1}\n", "")
    assert shell("push", "files", text='{"id":9}\n').out == "SUCCESS 8 - 8\n"
    fetched = shell("fetch", "--topic", "files", "--offset", "0", "--json").out.splitlines()
    pair = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert [json.loads(line) for line in fetched] == pair * 4 + [{"id": 9, "name": None}]


@pytest.mark.feature("F29")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense\n", "message 1 is not a JSON object"),
        ('{"id":1}\n{"ids":1}\n', "has no such column: ids"),
        ('{"name":"a"}\n', "id"),
        ('{"id":1}\n{"id":1,"name":":","id":2}\n', "message 2 has the key 'id' twice"),
    ],
)
def test_invalid_messages_are_an_error_of_one_line(shell: Shell, text: str, complaint: str) -> None:
    shell("topic", "create", "strict", "id:int64", "name:string?")
    pushed = shell("push", "strict", "-f", "-", text=text)
    assert (pushed.code, pushed.out) == (1, "")
    assert pushed.err.startswith("error: ")
    assert complaint in pushed.err
    assert pushed.err.count("\n") == 1


def test_raw_messages_with_subject_and_headers(shell: Shell) -> None:
    shell("topic", "create", "raw")
    first = shell("push", "raw", "hello", "--subject", "a.b", "-H", "k: v")
    assert first == Done(0, "SUCCESS 0 - 0\n", "")
    assert shell("push", "raw", "--text", text="one\ntwo\n").out == "SUCCESS 1 - 2\n"
    line = '{"payload_b64":"/w==","subject":"bin"}\n'
    assert shell("push", "raw", text=line).out == "SUCCESS 3 - 3\n"
    got = json.loads(shell("get", "raw", "--offset", "0", "--json").out)
    assert got.pop("timestamp").endswith("Z")
    assert got == {"offset": 0, "subject": "a.b", "headers": [["k", "v"]], "payload": "hello"}
    assert shell("get", "raw", "--last", "raw").out == "two\n"
    assert shell("get", "raw", "--next", "a.*", "--from", "0").out == "hello\n"
    nothing = shell("get", "raw", "--next", "a.*", "--from", "1")
    assert nothing.code == 1
    tailed = shell("tail", "raw", "--offset", "earliest", "--count", "3")
    assert [line.split(" ", 1)[1] for line in tailed.out.splitlines()] == [
        "a.b hello",
        "raw one",
        "raw two",
    ]


def test_a_wrong_command_line_is_exit_code_2(shell: Shell, tmp_path: Path) -> None:
    assert shell("fetch", "--topic", "x").code == 2
    assert shell("get", "x").code == 2
    assert shell("push", "x", "m", "-f", str(tmp_path)).code == 2
