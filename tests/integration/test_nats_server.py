"""`penstock-nats-server` as a process: what it takes, what it tells, and how it ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.nats.wire import Wire, api_request
from tests.servers.nats import LISTENING, OURS, NatsServer
from tests.servers.running import BIN

WAIT_SECONDS = 30


def _page(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _refused(*arguments: str) -> str:
    """What it says when it does not start."""
    done = subprocess.run(
        [str(BIN / OURS), *arguments], capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


Start = Callable[..., NatsServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server with these options, and ends it with the test."""
    with ExitStack() as started:

        def start(*options: str) -> NatsServer:
            server = NatsServer(tmp_path, OURS, options or ("--jetstream",))
            started.callback(server.close)
            server.start()
            return server

        yield start


def test_it_says_that_it_is_ready_and_little_else(start: Start) -> None:
    server = start()
    wire = Wire(server.port)
    api_request(wire, "STREAM.CREATE.S", {"name": "S"})
    wire.close()
    assert server.stop() == 0
    lines = [line.partition(" [INF] ")[2] for line in server.log().splitlines()]
    assert lines == [
        f"Listening for client connections on 127.0.0.1:{server.port}",
        "Server is ready",
    ]


def test_streams_survive_a_restart_and_a_crash(start: Start) -> None:
    for end in (NatsServer.stop, NatsServer.close, NatsServer.close):
        server = start()
        wire = Wire(server.port)
        wire.send(b"SUB in 1\r\n")
        api_request(wire, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        wire.publish("s", b"hi", "in")
        assert wire.read_until(1, WAIT_SECONDS)
        (answer,) = wire.take()
        wire.close()
        end(server)
    assert json.loads(answer.payload) == {"stream": "S", "seq": 3}


@pytest.mark.parametrize("end", [NatsServer.stop, NatsServer.close])
def test_a_schedule_that_was_due_while_nobody_served_fires_once(
    start: Start, end: Callable[[NatsServer], object]
) -> None:
    server = start()
    wire = Wire(server.port)
    config = {"name": "S", "subjects": ["s.*"], "allow_msg_schedules": True}
    api_request(wire, "STREAM.CREATE.S", config)
    due = datetime.now(UTC) + timedelta(seconds=1)
    fields = f"Nats-Schedule: @at {due.isoformat()}\r\nNats-Schedule-Target: s.target"
    wire.send(b"SUB in 1\r\n")
    wire.publish("s.once", b"hi", "in", f"NATS/1.0\r\n{fields}\r\n\r\n".encode())
    assert wire.read_until(1, WAIT_SECONDS)
    wire.close()
    end(server)
    for _ in range(2):
        server.start()
        wire = Wire(server.port)
        while "error" in api_request(wire, "STREAM.MSG.GET.S", {"last_by_subj": "s.target"}):
            pass
        state: Any = api_request(wire, "STREAM.INFO.S", {})["state"]
        wire.close()
        end(server)
        assert (state["messages"], state["last_seq"]) == (1, 2)


def test_pages_tell_of_the_clients(start: Start) -> None:
    server = start("-m", "-1")
    wire = Wire(server.port)
    wire.send(b"SUB a 1\r\nPUB a 2\r\nhi\r\n")
    wire.settle()
    told = _page(server.monitor, "/varz")
    assert [told[name] for name in ("in_msgs", "in_bytes", "out_msgs", "out_bytes")] == [1, 2, 1, 2]
    (client,) = _page(server.monitor, "/connz")["connections"]
    assert (client["subscriptions"], client["in_msgs"]) == (1, 1)
    wire.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(start: Start, number: signal.Signals) -> None:
    server = start()
    server.signal(number)
    assert server.wait() == 0


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = _refused("-p", str(port))
    assert f"[FTL] cannot listen on 127.0.0.1:{port} (address already in use)" in told


def test_a_second_server_on_the_same_store_is_refused(start: Start, tmp_path: Path) -> None:
    server = start()
    told = _refused("-p", "-1", "-js", "-sd", str(tmp_path / "store"))
    assert "[FTL] data directory" in told
    assert f"is in use by process {server.pid}; stop it or choose another with -sd" in told


@pytest.mark.parametrize(("name", "host"), [("nats-server", "0.0.0.0"), ("other", "127.0.0.1")])
def test_under_the_name_of_nats_server_it_listens_everywhere(
    tmp_path: Path, name: str, host: str
) -> None:
    called = tmp_path / name
    called.symlink_to(BIN / OURS)
    with subprocess.Popen([str(called), "-p", "-1"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = LISTENING.search(process.stderr.readline())
            assert told is not None
            assert told[1] == host
            wire = Wire(int(told[2]))
            wire.settle()
            wire.close()
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "0.0.0.0"), ("::", "[::]")])
def test_all_addresses_are_one_line_with_the_host_that_was_given(
    tmp_path: Path, host: str, shown: str
) -> None:
    """The suites of NATS clients compare the host of that line with the one of INFO."""
    command = [str(BIN / OURS), "-a", host, "-p", "-1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = [process.stderr.readline().partition(" [INF] ")[2] for _ in range(2)]
            listening, _, port = lines[0].rstrip().rpartition(":")
            wire = Wire(int(port))
            info = json.loads(wire.greeting[0].payload)
            wire.close()
        finally:
            process.terminate()
    assert listening == f"Listening for client connections on {shown}"
    assert lines[1] == "Server is ready\n"
    assert (info["host"], info["port"]) == (host, int(port))


def test_a_configuration_that_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "nats.conf"
    file.write_text("cluster { name: x }")
    told = _refused("-c", str(file))
    assert f"[FTL] {file}: Penstock does not know the setting cluster; remove it" in told


def test_it_may_be_called_nats_server(tmp_path: Path) -> None:
    (tmp_path / "nats-server").symlink_to(BIN / OURS)
    done = subprocess.run(
        ["nats-server", "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nats-server: v2.")


@pytest.mark.feature("T04")
@pytest.mark.parametrize(("chosen", "intact"), [("", [0, 1, 3, 4]), ("s.0", [0, 4])])
def test_a_consumer_goes_on_behind_damage_that_is_told_and_never_called_absence(
    start: Start, tmp_path: Path, chosen: str, intact: list[int]
) -> None:
    server = start()
    wire = Wire(server.port)
    wire.send(b"SUB in 1\r\n")
    config = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
    api_request(wire, "STREAM.CREATE.S", config)
    for number in range(5):
        wire.publish(f"s.{number % 2}", b"message-%d" % number, "in")
        assert wire.read_until(1, WAIT_SECONDS)
        wire.take()
    wire.close()
    # Without time to upload: the bucket would have another copy.
    server.close()
    _flip(tmp_path, b"message-2")

    server = start()
    wire = Wire(server.port)
    told = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": chosen}
    api_request(wire, "CONSUMER.CREATE.S.c", {"stream_name": "S", "config": told})
    wire.send(b"SUB out 2\r\n")
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":4,"expires":20000000000}', "out")
    assert wire.read_until(len(intact), WAIT_SECONDS)
    got = [frame.payload for frame in wire.take()]
    assert got == [b"message-%d" % number for number in intact]
    wire.publish("$JS.API.DIRECT.GET.S", b'{"seq":3}', "out")
    assert wire.read_until(1, WAIT_SECONDS)
    (answer,) = wire.take()
    assert answer.headers.startswith(b"NATS/1.0 5")
    assert b"offsets 2 to 2 are damaged" in answer.headers
    wire.close()


def _flip(directory: Path, payload: bytes) -> None:
    """One bit of a message, wherever the WAL has it."""
    files = [path for path in directory.rglob("wal-*.log") if payload in path.read_bytes()]
    (path,) = files
    data = bytearray(path.read_bytes())
    data[data.index(payload)] ^= 1
    path.write_bytes(data)
