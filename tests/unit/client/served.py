"""A small HTTP server that sends the replies a test sets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Seen(NamedTuple):
    method: str
    path: str
    body: bytes
    accept: str | None
    content_type: str | None


class Server:
    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.status, self.body = 200, b"{}"
        self.keeps_connections = True
        self.connections = 0
        self.url = ""


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server during a test."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            server.connections += 1
            super().setup()

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen = (self.headers.get("Accept"), self.headers.get("Content-Type"))
            server.seen.append(Seen(self.command, self.path, body, *seen))
            self.send_response(server.status)
            self.send_header("Content-Length", str(len(server.body)))
            self.end_headers()
            self.wfile.write(server.body)
            # Sends no Connection header, like a server that closes idle connections.
            self.close_connection = not server.keeps_connections

        do_GET = do_POST = do_DELETE = do  # noqa: N815

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
