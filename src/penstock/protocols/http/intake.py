"""Large bodies straight from the socket to where they stay.

By ASGI a body comes in pieces, each copied several times and a turn of the loop. One whose size is
told beforehand can do without: the socket is read into the body's own memory behind the parser's
back, and a new parser begins behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from penstock.protocols.http.reply import Event

EXTENSION: Final = "penstock.intake"
"""Of a scope: there, `fill` is what `Connection.fill` is, and `transport` the connection's."""

DISCARD_BYTES: Final = 64 << 10

CountReceived: TypeAlias = Callable[[int], None]
Fill: TypeAlias = Callable[[Event, memoryview, CountReceived], Awaitable[bool]]


class BodyIntake(asyncio.BufferedProtocol):
    """The protocol of a connection until the body is over; then it calls `resume`."""

    def __init__(
        self,
        connection: asyncio.Protocol,
        memory: memoryview,
        arrived: CountReceived,
        resume: Callable[[], None],
    ) -> None:
        self._connection, self._memory = connection, memory
        self._arrived, self._resume = arrived, resume
        self._missing = len(memory)
        self.received_bytes = 0
        self.filled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def discard(self) -> None:
        """Nobody wants the rest: it is read, so that the connection can go on, and not kept."""
        self._memory = memoryview(bytearray(min(self._missing, DISCARD_BYTES)))

    def abandon(self) -> None:
        """Discard the rest of a body whose request was refused."""
        self.discard()
        if not self.filled.done():
            self.filled.set_result(False)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._memory[-self._missing :]

    def buffer_updated(self, nbytes: int) -> None:
        self._missing -= nbytes
        self.received_bytes += nbytes
        if not self._missing:
            self._resume()
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
