"""A NATS connection that hides nothing: what it is given it sends, and every frame is kept."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import suppress
from typing import Final, NamedTuple

ANSWER_SECONDS: Final = 20.0
RECEIVE_BYTES: Final = 1 << 20
PING: Final = re.compile(rb"^PING\r?$", re.IGNORECASE | re.MULTILINE)

USUAL: Final = json.dumps(
    {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
)


class Frame(NamedTuple):
    """One thing the server said: a message, or a control line with its text as `payload`."""

    kind: str
    subject: str = ""
    sid: str = ""
    reply: str = ""
    headers: bytes = b""
    payload: bytes = b""


class Wire:
    """A connection whose frames are taken in the order in which they came."""

    def __init__(self, port: int, options: str | None = USUAL) -> None:
        """Says CONNECT with these options, or nothing at all without options."""
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._frames: list[Frame] = []
        self._pongs_due = 0
        self._info_due = False
        self.closed = False
        self.answers_pings = True
        self.server_pings = 0
        self.read_until(1, ANSWER_SECONDS)
        self.greeting = self.take()
        if options is not None:
            # Whoever has protocol 1 is told INFO again, right behind the first PONG.
            self._info_due = json.loads(options).get("protocol") == 1
            self.send(f"CONNECT {options}\r\n".encode())

    def send(self, data: bytes) -> None:
        self._pongs_due += len(PING.findall(data))
        with suppress(OSError):
            self._socket.sendall(data)

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> None:
        sizes = f"{len(headers)} {len(headers) + len(payload)}" if headers else f"{len(payload)}"
        words = ["HPUB" if headers else "PUB", subject, reply, sizes]
        line = " ".join(filter(None, words)).encode()
        self.send(b"".join((line, b"\r\n", headers, payload, b"\r\n")))

    def settle(self) -> None:
        """Everything sent so far has been read by the server, or it has closed the connection."""
        self.send(b"PING\r\n")
        self.read_until(0, ANSWER_SECONDS, pongs=True)

    def read_until(self, frames: int, seconds: float, pongs: bool = False, sid: str = "") -> bool:
        """Until that many frames wait to be taken (and every PONG came); False when too late.

        With a `sid`, messages of other subscriptions do not count.
        """
        deadline = time.monotonic() + seconds
        while self._waiting(sid) < frames or (pongs and (self._pongs_due > 0 or self._info_due)):
            if self.closed or (left := deadline - time.monotonic()) <= 0:
                return False
            self._receive(left)
        return True

    def take(self) -> list[Frame]:
        taken, self._frames = self._frames, []
        return taken

    def close(self) -> None:
        self._socket.close()

    def _waiting(self, sid: str) -> int:
        return sum(not (sid and frame.sid) or frame.sid == sid for frame in self._frames)

    def _receive(self, seconds: float) -> None:
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            return
        except OSError:
            data = b""
        self._buffer += data
        while (frame := self._next()) is not None:
            self._keep(frame)
        if not data and not self.closed:
            self.closed = True
            self._frames.append(Frame("closed"))

    def _keep(self, frame: Frame) -> None:
        if frame.kind == "PING":
            self.server_pings += 1
            if self.answers_pings:
                self.send(b"PONG\r\n")
        elif frame.kind == "PONG":
            self._pongs_due -= 1
        else:
            self._info_due = self._info_due and frame.kind != "INFO"
            self._frames.append(frame)

    def _next(self) -> Frame | None:
        line, end, rest = self._buffer.partition(b"\r\n")
        if not end:
            return None
        kind, _, text = line.partition(b" ")
        if kind not in (b"MSG", b"HMSG"):
            self._buffer = rest
            return Frame(kind.decode(), payload=text)
        words = text.decode().split(" ")
        size = int(words[-1])
        if len(rest) < size + 2:
            return None
        self._buffer = rest[size + 2 :]
        header_size = int(words[-2]) if kind == b"HMSG" else 0
        return Frame(
            kind.decode(),
            words[0],
            words[1],
            words[2] if len(words) > (4 if header_size else 3) else "",
            rest[:header_size],
            rest[header_size:size],
        )


def api_request(wire: Wire, subject: str, body: object = None) -> dict[str, object]:
    """Ask the JetStream API, outside of any exchange."""
    wire.send(b"SUB _ASKED asked\r\nUNSUB asked 1\r\n")
    payload = b"" if body is None else json.dumps(body).encode()
    wire.publish(f"$JS.API.{subject}", payload, "_ASKED")
    while wire.read_until(1, ANSWER_SECONDS):
        for frame in wire.take():
            if frame.sid == "asked":
                answer: dict[str, object] = json.loads(frame.payload)
                return answer
    raise AssertionError(f"no answer to {subject}")
