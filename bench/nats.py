"""Penstock's NATS server compared with nats-server: rounds alternate, medians are compared.

Both servers have the same flags and serve each load in turn, so that other work on the machine
affects them equally. Penstock syncs before it acknowledges; nats-server does not, unless
its file says `sync_interval: always`.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import nats

from bench import nats_wire
from bench.nats_wire import STREAM, Wire
from bench.report import Cell, Report, Table, Target
from bench.workload import directory

PROGRAMS: Final = {"penstock": "penstock-nats-server", "nats": "nats-server"}
LISTENING: Final = re.compile(r"Listening for client connections on .+:(\d+)")
ALWAYS: Final = "jetstream { sync_interval: always }\n"
SYNC_MESSAGES: Final = 1_000
CLIENT_WINDOW: Final = 500
RATIOS: Final = {
    "acked publish": 1.5,
    "unacked publish": 1.2,
    "pull and acks": 1.5,
    "direct get, pipelined": 1.5,
    "direct get, batched": 1.0,
    "direct get, one by one": 0.8,
}
CLIENT_RATIO: Final = 0.95
SYNC_RATIO: Final = 50.0


class Server(NamedTuple):
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Processor time of all its threads, as clock_getcpuclockid(3) defines it on Linux."""
        return time.clock_gettime(~self.pid << 3 | 2)

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


Servers = dict[str, Server]


class Measure(NamedTuple):
    """A number of messages, and a function that sends them and returns messages a second."""

    messages: int
    take: Callable[[Server], float]


class Taken(NamedTuple):
    """The result of a load on one server."""

    rate: float
    cpu_us: float
    """Processor time of the server for a message, over all cores."""


Medians = dict[str, dict[str, Taken]]
"""Results by measure and server."""


def run(quick: bool) -> Report:
    messages, rounds = (10_000, 1) if quick else (100_000, 9)
    with directory() as path, ExitStack() as stack:
        servers = {
            name: stack.enter_context(_served(program, path / name, ["-js"]))
            for name, program in PROGRAMS.items()
        }
        always = stack.enter_context(_served_syncing(path / "always"))
        wire = _compared(servers, rounds, _measures(messages))
        syncing = _syncing(servers["penstock"], always)
        client = _compared(servers, rounds, _client_measures(messages // 10))
        waiting = _waiting(servers, always)
    idle = _idle(*((100, 100) if quick else (1000, 10_000)))
    tables = [
        _table("nats: raw load, 128 bytes a message", wire),
        syncing[0],
        _table("nats: with nats-py as the client", client),
        waiting,
        idle,
    ]
    targets = [_target(name, medians, RATIOS[name]) for name, medians in wire.items()]
    targets += [_target(name, medians, CLIENT_RATIO) for name, medians in client.items()]
    return Report(tables, [*targets, syncing[1]])


# -- servers


@contextmanager
def _served(program: str, store: Path, flags: list[str]) -> Iterator[Server]:
    """Run a server during the context."""
    store.mkdir()
    command = [str(Path(sys.executable).with_name(program)), "-a", "127.0.0.1", "-p", "-1"]
    process = subprocess.Popen(
        [*command, "-sd", str(store), *flags], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        port = 0
        for line in process.stderr:
            if found := LISTENING.search(line):
                port = int(found[1])
            if "Server is ready" in line:
                break
        if not port:
            raise RuntimeError(f"{program} did not start")
        yield Server(port, process.pid)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _served_syncing(store: Path) -> Iterator[Server]:
    """A nats-server that syncs before it acknowledges."""
    config = store.with_suffix(".conf")
    config.write_text(ALWAYS)
    with _served(PROGRAMS["nats"], store, ["-c", str(config)]) as server:
        yield server


def _compared(servers: Servers, rounds: int, measures: dict[str, Measure]) -> Medians:
    """Run all measures on one server, then on the other."""
    found: dict[str, dict[str, list[Taken]]] = {
        name: {server: [] for server in servers} for name in measures
    }
    for _ in range(rounds):
        for name, server in servers.items():
            nats_wire.fresh_stream(server.port)
            for measure, (messages, take) in measures.items():
                before = server.cpu_seconds()
                rate = take(server)
                spent = (server.cpu_seconds() - before) * 1e6 / messages
                found[measure][name].append(Taken(rate, spent))
    return {
        name: {server: _median(taken) for server, taken in by_server.items()}
        for name, by_server in found.items()
    }


def _median(taken: list[Taken]) -> Taken:
    return Taken(*(statistics.median(column) for column in zip(*taken, strict=True)))


# -- raw load


def _measures(messages: int) -> dict[str, Measure]:
    loads: dict[str, tuple[int, Callable[[int, int], float]]] = {
        "acked publish": (messages, nats_wire.acked),
        "unacked publish": (messages, nats_wire.unacked),
        "pull and acks": (messages, nats_wire.pull),
        "direct get, pipelined": (messages // 5, nats_wire.direct),
        "direct get, batched": (messages // 2, nats_wire.direct_batch),
        "direct get, one by one": (messages // 50, nats_wire.direct_serial),
    }
    return {name: _wire_measure(count, load) for name, (count, load) in loads.items()}


def _wire_measure(messages: int, load: Callable[[int, int], float]) -> Measure:
    return Measure(messages, lambda server: load(server.port, messages))


def _syncing(ours: Server, always: Server) -> tuple[Table, Target]:
    """Acknowledged publishes if both servers sync first."""
    nats_wire.fresh_stream(always.port)
    theirs = nats_wire.acked(always.port, SYNC_MESSAGES)
    nats_wire.fresh_stream(ours.port)
    mine = nats_wire.acked(ours.port, 50 * SYNC_MESSAGES)
    table = Table(
        "nats: acked publish where both sync before the ack",
        ["", "messages/s"],
        [["penstock", mine], ["nats-server, sync_interval: always", theirs]],
    )
    ratio = mine / theirs
    promise = f"nats: acked publish at {SYNC_RATIO:g} times nats-server that syncs"
    return table, Target(promise, f"{ratio:.0f}", met=ratio >= SYNC_RATIO)


# -- nats-py


def _client_measures(messages: int) -> dict[str, Measure]:
    return {
        "nats-py: publish, pipelined": _client_measure(messages, _publish),
        "nats-py: fetch and ack": _client_measure(messages, _fetch),
        "nats-py: request and reply": _client_measure(messages // 2, _reply),
    }


def _client_measure(messages: int, take: Callable[[Any, int], Awaitable[float]]) -> Measure:
    return Measure(messages, lambda server: _client(server, take, messages))


def _client(server: Server, take: Callable[[Any, int], Awaitable[float]], messages: int) -> float:
    async def measured() -> float:
        client = await nats.connect(f"nats://127.0.0.1:{server.port}")
        try:
            return await take(client, messages)
        finally:
            await client.close()

    return asyncio.run(measured())


async def _publish(client: Any, messages: int) -> float:
    """Keep a number of publishes in flight: each acknowledgement starts the next one."""
    stream = client.jetstream()

    async def one_after_the_other() -> None:
        for _ in range(messages // CLIENT_WINDOW):
            await stream.publish(f"{STREAM}.c", nats_wire.PAYLOAD)

    start = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(CLIENT_WINDOW)))
    return messages / (time.perf_counter() - start)


async def _fetch(client: Any, messages: int) -> float:
    subscription = await client.jetstream().pull_subscribe(f"{STREAM}.c", "client")
    start, seen = time.perf_counter(), 0
    while seen < messages:
        batch = await subscription.fetch(CLIENT_WINDOW)
        for message in batch:
            await message.ack()
        seen += len(batch)
    await client.flush()
    return seen / (time.perf_counter() - start)


async def _reply(client: Any, messages: int) -> float:
    async def answer(message: Any) -> None:
        await message.respond(message.data)

    await client.subscribe("echo", cb=answer)
    start = time.perf_counter()
    for _ in range(messages):
        await client.request("echo", nats_wire.PAYLOAD)
    return messages / (time.perf_counter() - start)


def _waiting(servers: Servers, always: Server) -> Table:
    """A publish that waits for its ack costs a sync each time, or none."""

    async def one_by_one(client: Any, messages: int) -> float:
        stream = client.jetstream()
        start = time.perf_counter()
        for _ in range(messages):
            await stream.publish(f"{STREAM}.w", nats_wire.PAYLOAD)
        return messages / (time.perf_counter() - start)

    named = {**servers, "nats, sync_interval: always": always}
    rows: list[list[Cell]] = [
        [name, _client(server, one_by_one, SYNC_MESSAGES // 2)] for name, server in named.items()
    ]
    return Table("nats: nats-py waits for every ack", ["", "messages/s"], rows)


# -- memory


def _idle(connections: int, streams: int) -> Table:
    """Memory of new servers, which hold only these messages."""
    rows: list[list[Cell]] = []
    for name, program in PROGRAMS.items():
        with directory() as path, _served(program, path / name, ["-js"]) as server:
            Wire(server.port).close()
            before = server.resident_bytes()
            held = [Wire(server.port) for _ in range(connections)]
            each = (server.resident_bytes() - before) / connections
            for wire in held[1:]:
                wire.close()
            before = server.resident_bytes()
            passed = nats_wire.make_streams(held[0], streams)
            stream_each = (server.resident_bytes() - before) / streams
            held[0].close()
        rows.append([name, each / 1024, stream_each / 1024, streams / passed])
    return Table(
        f"nats: resident memory of {connections:,} idle connections and {streams:,} empty streams",
        ["", "KiB a connection", "KiB a stream", "streams made/s"],
        rows,
    )


# -- results


def _table(title: str, medians: Medians) -> Table:
    rows: list[list[Cell]] = [
        [name, ours.rate, theirs.rate, ours.rate / theirs.rate, ours.cpu_us, theirs.cpu_us]
        for name, (ours, theirs) in ((name, _pair(of)) for name, of in medians.items())
    ]
    columns = ["messages/s", "penstock", "nats-server", "ratio", "us of CPU", "nats-server's"]
    return Table(title, columns, rows)


def _target(name: str, medians: dict[str, Taken], least: float) -> Target:
    ours, theirs = _pair(medians)
    ratio = ours.rate / theirs.rate
    told = name if name.startswith("nats-py") else f"nats: {name}"
    return Target(f"{told} at {least:g} times nats-server", f"{ratio:.2f}", met=ratio >= least)


def _pair(medians: dict[str, Taken]) -> tuple[Taken, Taken]:
    return medians["penstock"], medians["nats"]
