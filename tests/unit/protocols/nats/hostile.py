"""Hostile values, and a server that is watched while it receives them.

`Watched` sees what no handler caught: exceptions that reach the event loop (from callbacks, from
protocols, and from tasks when they are collected) and log events with a traceback.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from tests.broker.jetstream import API, Streaming
from tests.broker.nats import Talk
from tests.broker.storage import World

DIGITS: Final = b"9" * 5000
DEEP: Final = 2000
VALUES: Final = (
    b"null",
    b"true",
    b"0",
    b"-1",
    b"1",
    b"2",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"-9223372036854775809",
    b"18446744073709551616",
    DIGITS,
    b"-" + DIGITS,
    b"0.5",
    b"1e3",
    b"1e400",
    b"-1e400",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b'""',
    b'"x"',
    b'"' + DIGITS + b'"',
    b'"' + DIGITS + b'%"',
    b'"1e400"',
    b'"-1"',
    b'"\xff\xfe"',
    b'"\\ud800"',
    b'"\\u0000"',
    b'"a..b"',
    b'">"',
    b'"*"',
    b'"{{wildcard(99999999999999999999)}}"',
    b'"{{partition(0,0)}}"',
    b'"0001-01-01T00:00:00Z"',
    b'"9999-12-31T23:59:59.999999999-23:59"',
    b'"0000-00-00T00:00:00Z"',
    b"[]",
    b"[null]",
    b"[1]",
    b'["x","x"]',
    b"{}",
    b'{"x":1}',
    b'{"x":"y"}',
    b"[" * DEEP + b"]" * DEEP,
    b'{"x":' * DEEP + b"1" + b"}" * DEEP,
    b"[" * DEEP,
)
"""JSON, and what is nearly JSON."""
BODIES: Final = (*VALUES, b"{", b'{"', b"\x00", b"\xff", b'{"x"}', b" " * 5000)
TEXTS: Final = (
    b"0",
    b"-1",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551616",
    DIGITS,
    b"9" * 60_000,
    b"9" * 60_000 + b"s",
    b"1" + b"." * 60_000,
    b"1s" * 30_000,
    b"1.5",
    b"1e400",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"never",
    b"+",
    b"\xff\xfe",
    "\u0663".encode(),
    "\u00b2".encode(),
    b"{}",
    b"x" * 60_000,
    b"@every 0s",
    b"@every " + DIGITS + b"h",
    b"@at 9999-12-31T23:59:59-23:59",
    b"@at 0001-01-01T00:00:00+23:59",
    b"* * * * * *",
    b"99 99 99 99 99 99",
    DIGITS + b" * * * * *",
    b"*/" + DIGITS + b" * * * * *",
    b"0 0 0 31 2 *",
)
"""Values of header fields."""
STREAMS: Final[dict[str, dict[str, Any]]] = {
    "S": {"allow_direct": True},
    "ALL": {
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "allow_msg_schedules": True,
        "allow_atomic": True,
        "allow_batched": True,
    },
    "COUNT": {"allow_msg_counter": True, "allow_direct": True},
}


class Flood:
    """A client that sends many requests and tracks which are unanswered."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self._count = 0
        self.unanswered: dict[bytes, tuple[bytes, bytes, bytes]] = {}
        self.answers: dict[bytes, bytes] = {}
        talk.send(b"SUB _R.* 9\r\nSUB _I 1\r\n")

    def ask(self, subject: bytes, body: bytes = b"", headers: bytes = b"") -> bytes:
        """Send a request; returns the subject of its answer."""
        self._count += 1
        reply = b"_R.%d" % self._count
        self.unanswered[reply] = (subject, body[:100], headers[:100])
        self.send(subject, body, headers, reply)
        return reply

    def send(self, subject: bytes, body: bytes, headers: bytes = b"", reply: bytes = b"") -> None:
        """Publish a message that may remain unanswered."""
        if headers:
            sizes = b"%d %d" % (len(headers), len(headers) + len(body))
            self.talk.send(b"HPUB %b %b %b\r\n%b%b\r\n" % (subject, reply, sizes, headers, body))
        else:
            self.talk.send(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body))

    async def answered(self) -> None:
        """Wait until every request has an answer."""
        while self.unanswered:
            try:
                line = await self.talk.line()
            except (TimeoutError, asyncio.IncompleteReadError) as error:
                raise AssertionError(f"not answered: {self.unanswered.values()}") from error
            kind, _, rest = line.partition(b" ")
            if kind in (b"MSG", b"HMSG"):
                words = rest.split()
                data = await self.talk.reader.readexactly(int(words[-1]) + 2)
                self.unanswered.pop(words[0], None)
                self.answers[words[0]] = data[:-2]
            else:
                assert kind.strip() in (b"PING", b"PONG", b"INFO"), line

    async def api(self, endpoint: str, body: bytes) -> bytes:
        """Ask the API and wait for the answer."""
        reply = self.ask(API + endpoint.encode(), body)
        await self.answered()
        return self.answers[reply]


class Watched:
    """A server with streams, and another client that must not be affected."""

    def __init__(self, made: Streaming, flood: Flood, bystander: Talk) -> None:
        self.made, self.flood, self._bystander = made, flood, bystander

    async def undisturbed(self) -> None:
        """Check that the other client's connection still works."""
        got = await self._bystander.answer(b"PUB by.stander 2\r\nhi\r\n")
        assert got.replace(b"PING\r\n", b"") == b"MSG by.stander 1 2\r\nhi\r\n"


@asynccontextmanager
async def watching(world: World, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Watched]:
    """A server; fails at the end if anything raised, or the other client is not served."""
    loop, raised = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: raised.append(context))
    with capture_logs() as events, caplog.at_level(logging.WARNING):
        async with Streaming(world) as made:
            for name, config in STREAMS.items():
                await made.asker.create(name, subjects=[f"{name}.>"], **config)
            bystander = await made.server.connect()
            bystander.send(b"SUB by.stander 1\r\n")
            watched = Watched(made, Flood(await made.server.connect()), bystander)
            yield watched
            await watched.undisturbed()
        gc.collect()
        await asyncio.sleep(0)
    assert [str(context.get("exception", context))[:500] for context in raised] == []
    assert [event for event in events if event.get("exc_info")] == []
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
