"""`penstock serve` as a real process: how it starts, answers, refuses to start, and stops."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.assembly.stopping import SECOND_SIGNAL_SECONDS
from tests.integration.process import FREE_PORT, WAIT_SECONDS, Answer, Broker, refused

SLOW = """
import asyncio, pathlib, sys
from penstock.cli import main
from penstock.protocols.http.app import App

go = pathlib.Path(sys.argv.pop(1))
answer_at_once = App.__call__

async def answer_late(self, scope, receive, send):
    print("request in hand", file=sys.stderr, flush=True)
    while not go.exists():
        await asyncio.sleep(0.01)
    await answer_at_once(self, scope, receive, send)

App.__call__ = answer_late
main()
"""
"""The same program, with requests that wait for the file of its first argument."""


def _slow(directory: Path, *arguments: str) -> Broker:
    """Answers once there is a file `go` in the directory."""
    command = (sys.executable, "-c", SLOW, str(directory / "go"), "serve")
    return Broker("--data", str(directory / "data"), *FREE_PORT, *arguments, command=command)


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.feature("X02")
def test_serve_on_defaults_answers_on_loopback_and_needs_nothing_else(tmp_path: Path) -> None:
    with Broker(*FREE_PORT, cwd=tmp_path) as broker:
        assert broker.host == "127.0.0.1"
        assert broker.get("/healthz") == Answer(200, {"status": "ok"})
        ready = broker.get("/readyz")
        assert (ready.status, ready.body["status"]) == (200, "ready")
        assert "logs" in ready.body
        assert broker.get("/nothing") == Answer(
            404,
            {
                "message": "there is no resource at /nothing",
                "code": "not_found",
            },
        )
        assert broker.get("/readyz", "HEAD") == Answer(200, None)
        assert (tmp_path / "data" / "LOCK").read_text().strip() == str(broker.process.pid)


@pytest.mark.feature("X15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_broker_with_exit_code_0(tmp_path: Path, number: signal.Signals) -> None:
    with Broker("--data", str(tmp_path), *FREE_PORT) as broker:
        broker.signal(number)
        assert broker.wait() == 0
        events = [json.loads(line) for line in broker.errors().splitlines()]
    assert [event["event"] for event in events] == [
        "broker ready",
        "broker stopping",
        "broker stopped",
    ]
    assert events[1]["signal"] == number.name
    with Broker("--data", str(tmp_path), *FREE_PORT) as again:
        assert again.get("/healthz").status == 200


@pytest.mark.feature("X15")
def test_a_drain_turns_unready_at_once_and_finishes_the_request_in_hand(tmp_path: Path) -> None:
    with _slow(tmp_path) as broker, ThreadPoolExecutor() as threads:
        request = threads.submit(broker.get, "/readyz")
        _eventually(lambda: "request in hand" in broker.errors())
        broker.signal(signal.SIGTERM)
        _eventually(lambda: "broker stopping" in broker.errors())
        (tmp_path / "go").touch()
        answer = request.result()
        assert (answer.status, answer.body["status"]) == (503, "not ready")
        assert answer.body["message"] == "the broker is shutting down"
        assert broker.wait() == 0


@pytest.mark.feature("X15")
def test_a_drain_ends_after_its_seconds_and_tells_the_request_left(tmp_path: Path) -> None:
    with (
        _slow(tmp_path, "--set", "shutdown.drain_seconds=1") as broker,
        ThreadPoolExecutor() as threads,
    ):
        request = threads.submit(broker.get, "/readyz")
        _eventually(lambda: "request in hand" in broker.errors())
        broker.signal(signal.SIGTERM)
        assert request.result() == Answer(
            503,
            {
                "message": "the broker is shutting down; retry later",
                "code": "shutting_down",
            },
        )
        assert broker.wait() == 0


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 128 + 15), (signal.SIGINT, 128 + 2)])
def test_a_second_signal_ends_the_process_at_once(
    tmp_path: Path, second: signal.Signals, code: int
) -> None:
    with (
        _slow(tmp_path, "--set", "shutdown.drain_seconds=600") as broker,
        socket.create_connection((broker.host, broker.port)) as client,
    ):
        client.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
        _eventually(lambda: "request in hand" in broker.errors())
        broker.signal(signal.SIGTERM)
        _eventually(lambda: "broker stopping" in broker.errors())
        time.sleep(SECOND_SIGNAL_SECONDS)
        broker.signal(second)
        assert broker.wait() == code


@pytest.mark.feature("X15")
def test_a_signal_that_comes_twice_at_once_is_one_signal(tmp_path: Path) -> None:
    with _slow(tmp_path) as broker, ThreadPoolExecutor() as threads:
        request = threads.submit(broker.get, "/healthz")
        _eventually(lambda: "request in hand" in broker.errors())
        broker.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, broker.process.pid, os.WSTOPPED | os.WNOWAIT)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            broker.signal(number)
        _eventually(lambda: "broker stopping" in broker.errors())
        (tmp_path / "go").touch()
        assert request.result() == Answer(200, {"status": "ok"})
        assert broker.wait() == 0


def test_a_second_start_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with Broker("--data", "./data", *FREE_PORT, cwd=tmp_path) as broker:
        assert refused("--data", "./data", *FREE_PORT, cwd=tmp_path) == (
            f"data directory ./data is in use by process {broker.process.pid}; "
            "stop it or choose another with --data"
        )
        assert broker.get("/healthz").status == 200


def test_a_killed_broker_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    with Broker("--data", str(tmp_path), *FREE_PORT) as broker:
        broker.signal(signal.SIGKILL)
        assert broker.wait() == -signal.SIGKILL
    with Broker("--data", str(tmp_path), *FREE_PORT) as again:
        assert again.get("/readyz").status == 200


def test_a_port_in_use_names_the_port_and_the_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refused("--http", f"127.0.0.1:{port}", cwd=tmp_path) == (
            f"cannot listen on 127.0.0.1:{port} (address already in use); "
            "choose another with --http HOST:PORT"
        )


def test_listening_beyond_loopback_is_refused(tmp_path: Path) -> None:
    assert refused("--http", "0.0.0.0:0", cwd=tmp_path) == (
        "cannot listen on 0.0.0.0:0: it is reachable from other machines and Penstock has no "
        "authentication yet; choose a loopback address with --http, such as 127.0.0.1"
    )


@pytest.mark.feature("T27")
def test_a_wrong_setting_is_one_line_and_nothing_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("storage:\n  wal:\n    fsync_interval: 5\n")
    assert refused("--config", "penstock.yaml", cwd=tmp_path) == (
        "unknown setting storage.wal.fsync_interval (file penstock.yaml line 3); "
        "did you mean storage.wal.fsync_interval_ms?"
    )
    assert refused(cwd=tmp_path, environ={"PENSTOCK__SHUTDOWN__DRAIN_SECONDS": "-1"}) == (
        "shutdown.drain_seconds is '-1' (environment PENSTOCK__SHUTDOWN__DRAIN_SECONDS) "
        "but must be a whole number from 0 to 3600"
    )
    assert refused("--http", "8080", cwd=tmp_path) == (
        "http.listen is '8080' (--http) but must be HOST:PORT with a port from 0 to 65535, "
        "or a list of these: '8080' lacks a host or a port"
    )
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.feature("T27")
def test_a_broker_in_memory_writes_nothing_but_its_lock(tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    aside.mkdir()
    environ = {"TMPDIR": str(aside)}
    with Broker(
        "--set", "storage.mode=memory", *FREE_PORT, cwd=tmp_path, environ=environ
    ) as broker:
        assert broker.get("/readyz").status == 200
        assert broker.get("/healthz").status == 200
        assert [path.name for path in (tmp_path / "data").iterdir()] == ["LOCK"]
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["LOCK"]
    assert list(aside.iterdir()) == []


def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refused("--data", "file/data", cwd=tmp_path) == (
        "cannot use data directory file/data (not a directory); choose another with --data"
    )


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_are_never_logged(tmp_path: Path, form: str) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("storage: {cloud: {s3: {access_key: '${ACCESS}', secret_key: '${SECRET}'}}}")
    # The data directory's name is logged at the start; here it gives the secret away.
    data = tmp_path / "hunter2"
    sets = ("--set", "log.level=debug", "--set", f"log.format={form}")
    environ = {"ACCESS": "AKIA123", "SECRET": "hunter2"}
    with Broker(
        "--config", str(file), "--data", str(data), *sets, *FREE_PORT, environ=environ
    ) as broker:
        broker.get("/readyz")
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        errors = broker.errors()
    assert f"{tmp_path}/***" in errors
    assert "hunter2" not in errors
    assert "AKIA123" not in errors
