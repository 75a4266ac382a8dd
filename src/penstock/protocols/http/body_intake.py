"""Reads a large body from the socket straight into its own buffer.

ASGI delivers a body in pieces, each copied several times and each in its own turn of the event
loop. A body of known size bypasses that: while it is read, this protocol replaces the HTTP parser
on the transport, and a new parser continues after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from penstock.protocols.http.reply import Event

EXTENSION: Final = "penstock.intake"
"""The ASGI extension that offers a connection's `fill` method and `transport` to applications."""

DISCARD_BYTES: Final = 64 << 10
"""Size of the buffer into which the rest of a discarded body is read."""

CountReceived: TypeAlias = Callable[[int], None]
Fill: TypeAlias = Callable[[Event, memoryview, CountReceived], Awaitable[bool]]


class BodyIntake(asyncio.BufferedProtocol):
    """The protocol of a connection up to the end of the body; then it calls `resume`."""

    def __init__(
        self,
        connection: asyncio.Protocol,
        memory: memoryview,
        count_received: CountReceived,
        resume: Callable[[], None],
    ) -> None:
        self._connection, self._memory = connection, memory
        self._count_received, self._resume = count_received, resume
        self._missing = len(memory)
        self.received_bytes = 0
        self.filled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def discard(self) -> None:
        """Read and drop the rest of the body, so that the connection stays usable."""
        self._memory = memoryview(bytearray(min(self._missing, DISCARD_BYTES)))

    def abandon(self) -> None:
        """Discard the rest of the body of a refused request."""
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
            self._count_received(nbytes)
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
