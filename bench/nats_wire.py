"""Raw NATS load: prepared bytes, sent and counted without a client library."""

from __future__ import annotations

import json
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Final

STREAM: Final = "bench"
PAYLOAD: Final = b"x" * 128
BURST: Final = 250
WINDOW: Final = 4_000
"""Publishes in flight."""
BATCH: Final = 1_000
STREAMS_AT_ONCE: Final = 500
Counted = Callable[[int], None]
_DELIVERY: Final = re.compile(rb"MSG \S+ 1 (\$JS\.ACK\.\S+) \d+\r\n")
_CONNECT: Final = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
)


class Wire:
    """A connection to a NATS server."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(_CONNECT)
        self.settle()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def settle(self) -> None:
        """Wait until the server has read everything that was sent."""
        self.send(b"PING\r\n")
        self.count(b"PONG\r\n", 1)

    def count(
        self, mark: bytes, wanted: int, on_count: Callable[[int], None] | None = None
    ) -> None:
        """Read until a marker was received a number of times."""
        seen, tail = 0, b""
        while seen < wanted:
            data = tail + self.receive()
            seen += data.count(mark)
            end = data.rfind(mark)
            tail = data[max(end + len(mark), len(data) - len(mark) + 1) :]
            if on_count is not None:
                on_count(seen)

    def receive(self) -> bytes:
        data = self.socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data

    def api(self, endpoint: str, body: object) -> dict[str, Any]:
        """Call the API and return its reply; nothing else may be in flight."""
        payload = json.dumps(body).encode() if body is not None else b""
        self.send(
            b"SUB _API api\r\nUNSUB api 1\r\nPUB $JS.API.%b _API %d\r\n%b\r\n"
            % (endpoint.encode(), len(payload), payload)
        )
        data = b""
        while True:
            data += self.receive()
            head = re.search(rb"MSG _API api +(\d+)\r\n", data)
            if head and len(data) >= head.end() + int(head[1]) + 2:
                answer: dict[str, Any] = json.loads(data[head.end() : head.end() + int(head[1])])
                return answer

    def made(self, endpoint: str, body: object) -> dict[str, Any]:
        """Call the API and return its reply, which must not be an error."""
        answer = self.api(endpoint, body)
        if "error" in answer:
            raise RuntimeError(f"{endpoint}: {answer['error']['description']}")
        return answer

    def close(self) -> None:
        self.socket.close()


def fresh_stream(port: int) -> None:
    wire = Wire(port)
    wire.api(f"STREAM.DELETE.{STREAM}", None)
    config = {"name": STREAM, "subjects": [f"{STREAM}.>"], "storage": "file", "allow_direct": True}
    wire.made(f"STREAM.CREATE.{STREAM}", config)
    wire.close()


def make_streams(wire: Wire, count: int) -> float:
    """Publish empty messages with a number of them in flight, and return the seconds."""
    wire.send(b"SUB _MK mk\r\n")
    asks = [
        _request(f"STREAM.CREATE.idle{n}", b"_MK", {"name": f"idle{n}", "subjects": [f"idle.{n}"]})
        for n in range(count)
    ]
    sent = 0

    def on_count(made: int) -> None:
        nonlocal sent
        more = asks[sent : made + STREAMS_AT_ONCE]
        wire.send(b"".join(more))
        sent += len(more)

    start = time.perf_counter()
    on_count(0)
    wire.count(b'"did_create":true', count, on_count)
    wire.send(b"UNSUB mk\r\n")
    return time.perf_counter() - start


def acked(
    port: int, messages: int, window: int = WINDOW, payloads: Sequence[bytes] = (PAYLOAD,)
) -> float:
    """Acknowledged publishes a second, with a number of them in flight; payloads rotate."""
    wire = Wire(port)
    wire.send(b"SUB _AK.* 1\r\n")
    burst = min(BURST, window)
    chunks = cycle(
        b"".join(_publish(b"a", b"_AK.1 ", payload) for payload in payloads[start : start + burst])
        * (burst // min(burst, len(payloads)))
        for start in range(0, len(payloads), burst)
    )
    done = threading.Condition()
    seen = 0

    def on_count(count: int) -> None:
        nonlocal seen
        with done:
            seen = count
            done.notify()

    reader = threading.Thread(target=wire.count, args=(b"MSG _AK.1", messages, on_count))
    start = time.perf_counter()
    reader.start()
    for sent in range(0, messages, burst):
        with done:
            done.wait_for(lambda: sent - seen <= window - burst)  # noqa: B023 - used at once
        wire.send(next(chunks))
    reader.join()
    return _rate(messages, start, wire)


def unacked(port: int, messages: int) -> float:
    """Publishes a second without acknowledgements, until the stream has all messages."""
    wire = Wire(port)
    before = _messages(wire)
    chunk = _publish(b"b", b"") * BURST
    start = time.perf_counter()
    for _ in range(messages // BURST):
        wire.send(chunk)
    wire.settle()
    while _messages(wire) - before < messages:
        time.sleep(0.002)
    return _rate(messages, start, wire)


def pull(port: int, messages: int) -> float:
    """Messages a second in batches, each acknowledged, until the server has counted them all.

    A batch is asked for while another is on its way.
    """
    wire = Wire(port)
    config = {"durable_name": "d", "ack_policy": "explicit", "max_ack_pending": 100_000}
    wire.made(f"CONSUMER.DURABLE.CREATE.{STREAM}.d", {"stream_name": STREAM, "config": config})
    ask = _request(f"CONSUMER.MSG.NEXT.{STREAM}.d", b"_PL", {"batch": BATCH, "expires": 30 * 10**9})
    wire.send(b"SUB _PL 1\r\n")
    messages -= messages % BATCH
    seen = asked = 0
    tail = b""
    start = time.perf_counter()
    while seen < messages:
        if asked - seen <= BATCH and asked < messages:
            wire.send(ask)
            asked += BATCH
        data = tail + wire.receive()
        found = list(_DELIVERY.finditer(data))
        tail = data[max(found[-1].end() if found else 0, len(data) - 512) :]
        seen += len(found)
        wire.send(b"".join(b"PUB %b 4\r\n+ACK\r\n" % one[1] for one in found))
    wire.settle()
    while wire.made(f"CONSUMER.INFO.{STREAM}.d", None)["num_ack_pending"]:
        time.sleep(0.002)
    return _rate(messages, start, wire)


def direct(port: int, messages: int) -> float:
    """Direct gets a second, all in flight at once."""
    wire = Wire(port)
    wire.send(b"SUB _DG 1\r\n")
    asks = [_request(f"DIRECT.GET.{STREAM}", b"_DG", {"seq": n + 1}) for n in range(messages)]
    sender = threading.Thread(target=wire.send, args=(b"".join(asks),))
    start = time.perf_counter()
    sender.start()
    wire.count(b"HMSG _DG ", messages)
    sender.join()
    return _rate(messages, start, wire)


def direct_serial(port: int, messages: int) -> float:
    """Direct gets a second, one after the other."""
    wire = Wire(port)
    wire.send(b"SUB _DS 1\r\n")
    took = []
    for number in range(messages):
        ask = _request(f"DIRECT.GET.{STREAM}", b"_DS", {"seq": number + 1})
        start = time.perf_counter()
        wire.send(ask)
        wire.count(b"HMSG _DS ", 1)
        took.append(time.perf_counter() - start)
    wire.close()
    return 1 / statistics.median(took)


def direct_batch(port: int, messages: int) -> float:
    """Messages a second of one direct get."""
    wire = Wire(port)
    wire.send(b"SUB _DB 1\r\n")
    body = {"seq": 1, "next_by_subj": ">", "batch": messages}
    start = time.perf_counter()
    wire.send(_request(f"DIRECT.GET.{STREAM}", b"_DB", body))
    wire.count(b"HMSG _DB ", messages)
    return _rate(messages, start, wire)


def _publish(token: bytes, reply: bytes, payload: bytes = PAYLOAD) -> bytes:
    subject = b"%b.%b" % (STREAM.encode(), token)
    return b"PUB %b %b%d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def _request(endpoint: str, reply: bytes, body: object) -> bytes:
    text = json.dumps(body, separators=(",", ":")).encode()
    return b"PUB $JS.API.%b %b %d\r\n%b\r\n" % (endpoint.encode(), reply, len(text), text)


def _messages(wire: Wire) -> int:
    return int(wire.made(f"STREAM.INFO.{STREAM}", None)["state"]["messages"])


def _rate(messages: int, start: float, wire: Wire) -> float:
    passed = time.perf_counter() - start
    wire.close()
    return messages / passed
