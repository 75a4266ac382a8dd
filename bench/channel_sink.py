"""A receiver of webhooks that only replies, for the benchmark of channels."""

from __future__ import annotations

import asyncio
import re
from typing import cast

import uvloop

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Receiver(asyncio.Protocol):
    """Replies to each request of a connection after its body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._data = cast(asyncio.Transport, transport), b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._data, 0, end)
            stop = end + 4 + (int(length[1]) if length else 0)
            if len(self._data) < stop:
                return
            self._data = self._data[stop:]
            self._transport.write(_ANSWER)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"http listening on http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
