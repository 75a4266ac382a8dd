"""Large bodies straight from the socket to where they stay.

By ASGI a body comes in pieces, each copied several times and a turn of the loop. One whose size is
told beforehand can do without: the socket is read into the body's own memory behind the parser's
back, and a new parser begins behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.doors.http.reply import Event

EXTENSION: Final = "penstock.intake"
"""Of a scope: there, `fill` is what `Connection.fill` is."""

DISCARD_BYTES: Final = 64 << 10

Arrived: TypeAlias = Callable[[int], None]
Fill: TypeAlias = Callable[[Event, memoryview, Arrived], Awaitable[bool]]


class Connection(HttpToolsProtocol):
    """An HTTP connection that can fill an application's memory with the body of a request."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: {"fill": self.fill}}

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.scope is not None:
            # It would keep this connection until somebody collects garbage.
            self.scope["extensions"] = {}

    async def fill(self, scope: Event, memory: memoryview, arrived: Arrived) -> bool:
        """Have the whole body of a request in this memory, which is as large as it is.

        `arrived` is told how much more came, and may raise to end it. Returns False where the body
        must be received as ever: the client went away, or sent more behind it already.
        """
        cycle = self.cycle
        have = len(cycle.body)
        if cycle.scope is not scope or self.transport.is_closing():
            return False
        if not cycle.more_body and have < len(memory):
            return False
        if cycle.waiting_for_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        arrived(have)
        memory[:have] = cycle.body
        if have < len(memory) and not await self._fill(memory[have:], arrived):
            return False
        cycle.body, cycle.more_body = bytearray(), False
        return True

    async def _fill(self, memory: memoryview, arrived: Arrived) -> bool:
        intake = _Intake(self, memory, arrived)
        self._hand_to(intake)
        try:
            return await intake.filled
        except BaseException:
            intake.discard()
            raise

    def resume(self) -> None:
        """Be the protocol again, behind a body that the parser did not see."""
        self.parse_anew()
        self._hand_to(self)

    def parse_anew(self) -> None:
        """Take what comes next for the beginning of a request."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _hand_to(self, protocol: asyncio.BaseProtocol) -> None:
        # A transport looks at how its protocol wants to be called when it begins to read.
        self.flow.pause_reading()
        self.transport.set_protocol(protocol)
        self.flow.resume_reading()


class _Intake(asyncio.BufferedProtocol):
    """The protocol of a connection until the body is over."""

    def __init__(self, connection: Connection, memory: memoryview, arrived: Arrived) -> None:
        self._connection, self._memory, self._arrived = connection, memory, arrived
        self._missing = len(memory)
        self.filled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def discard(self) -> None:
        """Nobody wants the rest: it is read, so that the connection can go on, and not kept."""
        self._memory = memoryview(bytearray(min(self._missing, DISCARD_BYTES)))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._memory[-self._missing :]

    def buffer_updated(self, nbytes: int) -> None:
        self._missing -= nbytes
        if not self._missing:
            self._connection.resume()
        if self.filled.done():
            return
        try:
            self._arrived(nbytes)
        except Exception as error:
            self.filled.set_exception(error)
        else:
            if not self._missing:
                self.filled.set_result(True)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
        if not self.filled.done():
            self.filled.set_result(False)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
