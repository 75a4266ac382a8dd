"""Channels of a broker in a process of its own: broadcasts, deliveries, and long queues."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

import msgspec
import pyarrow as pa

from bench.http_wire import WITHOUT_UPLOADS, Connection, Server, broker, load, served
from bench.report import Cell, Report, Table, Target
from bench.workload import directory, percentile
from penstock import SyncClient

PAYLOAD: Final = b"x" * 128
CONNECTIONS: Final = (1, 32)
CONSUMERS: Final = 5
MESSAGES: Final = 4000
QUEUES: Final = (1000, 1_000_000)
GROWTH_MAX: Final = 2.0
_TOKENS: Final = {"X-Broker-Channel-Token": "ct", "X-Broker-Consumer-Token": "kt"}


def run(quick: bool) -> Report:
    seconds = 0.5 if quick else 2.0
    with directory() as path, served(*broker(path, *WITHOUT_UPLOADS)) as server:
        sent = _broadcasts(server, seconds)
        with served(sys.executable, "-m", "bench.channel_sink") as sink:
            delivered = _deliveries(server, sink, 200 if quick else MESSAGES)
        queues = (1000, 20_000) if quick else QUEUES
        listed, growth = _long_queues(server, queues)
    target = Target(
        f"channels: listing {queues[1]:,} queued jobs takes no longer than {queues[0]:,}",
        f"{growth:.2f} times as long",
        met=growth <= GROWTH_MAX,
    )
    return Report([sent, delivered, listed], [target])


def _request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: a", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _put(server: Server, path: str, **fields: str) -> None:
    kind = {"content-type": "application/x-www-form-urlencoded"}
    Connection(server.address).ask(_request("PUT", path, kind, urlencode(fields).encode()))


def _broadcast(channel: str) -> bytes:
    headers = {
        "X-Broker-Channel-Token": "ct",
        "X-Broker-Producer-ID": "p",
        "X-Broker-Producer-Token": "pt",
    }
    return _request("POST", f"/channel/{channel}/broadcast", headers, PAYLOAD)


def _broadcasts(server: Server, seconds: float) -> Table:
    _put(server, "/producer/p", token="pt")
    _put(server, "/channel/sent", token="ct")
    rows: list[list[Cell]] = []
    for count in CONNECTIONS:
        connections = [Connection(server.address) for _ in range(count)]
        begun, used = time.perf_counter(), server.cpu_seconds()
        speed = load(connections, _broadcast("sent"), seconds)
        took, used = time.perf_counter() - begun, server.cpu_seconds() - used
        rows.append([count, speed, 1e6 * used / (speed * took)])
    return Table(
        "channels: broadcasts of 128 bytes, durable before they are answered",
        ["connections", "broadcasts/s", "CPU us each"],
        rows,
    )


def _deliveries(server: Server, sink: Server, messages: int) -> Table:
    """Consumers are disabled until all messages are stored."""
    host, port = sink.address
    _put(server, "/channel/pushed", token="ct")
    for number in range(CONSUMERS):
        place = f"/channel/pushed/consumer/k{number}"
        _put(server, place, token="kt", callbackUrl=f"http://{host}:{port}/")
        _call(server, "POST", f"{place}/disable")
    with SyncClient(f"http://{server.address[0]}:{server.address[1]}") as client:
        client.push("pushed", [PAYLOAD] * messages)
    begun, used = time.perf_counter(), server.cpu_seconds()
    for number in range(CONSUMERS):
        _call(server, "POST", f"/channel/pushed/consumer/k{number}/enable")
    wanted = messages * CONSUMERS
    while _delivered(server) < wanted:
        time.sleep(0.05)
    took, used = time.perf_counter() - begun, server.cpu_seconds() - used
    return Table(
        "channels: deliveries to a receiver that does nothing",
        ["consumers", "messages", "deliveries/s", "CPU us each"],
        [[CONSUMERS, messages, wanted / took, 1e6 * used / wanted]],
    )


def _delivered(server: Server) -> float:
    text = Connection(server.address).ask(_request("GET", "/metrics")).decode()
    found = re.search(r"^penstock_deliveries_total (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _call(server: Server, method: str, path: str) -> None:
    """Send a request that must be answered with 202."""
    connection = Connection(server.address)
    connection.socket.sendall(_request(method, path, _TOKENS))
    answer = connection.socket.recv(4096)
    if b" 202 " not in answer:
        raise RuntimeError(f"the broker answered {answer!r}")


def _long_queues(server: Server, queues: tuple[int, int]) -> tuple[Table, float]:
    _put(server, "/channel/queued", token="ct")
    place = "/channel/queued/consumer/k"
    _put(server, place, token="kt", type="pull", callbackUrl="http://127.0.0.1:9/")
    connection, rows, there = Connection(server.address), list[list[Cell]](), 0
    request = _request("GET", f"{place}/queued-jobs?limit=25", _TOKENS)
    claim = _request("POST", f"{place}/claim?limit=1", _TOKENS)
    with SyncClient(f"http://{server.address[0]}:{server.address[1]}") as client:
        for wanted in queues:
            while there < wanted:
                more = min(100_000, wanted - there)
                client.push("queued", pa.table({"payload": pa.array([PAYLOAD] * more)}))
                there += more
            listed = [_timed(connection, request) for _ in range(200)]
            claimed = [_timed(connection, claim) for _ in range(100)]
            rows.append(
                [
                    wanted,
                    percentile(listed, 0.5),
                    percentile(listed, 0.99),
                    percentile(claimed, 0.5),
                ]
            )
    growth = percentile(listed, 0.5) / float(rows[0][1] or 1)
    return Table(
        "channels: 25 queued jobs listed, and one claimed (durable), from queues of two lengths",
        ["queued jobs", "list p50 ms", "list p99 ms", "claim p50 ms"],
        rows,
    ), growth


def _timed(connection: Connection, request: bytes) -> float:
    begun = time.perf_counter()
    if not msgspec.json.decode(connection.ask(request))["Result"]:
        raise RuntimeError("the broker has no job")
    return 1e3 * (time.perf_counter() - begun)
