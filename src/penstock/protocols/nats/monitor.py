"""The monitoring pages of nats-server, for its tools: `/varz` and `/connz`, as JSON over HTTP.

The pages show the server's counters. `/connz?subs=1` lists the subscribed subjects, too; `offset`
and `limit` select a page of clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from penstock.host.clock import Clock
from penstock.model.times import time_text_us
from penstock.protocols.listener import Listener
from penstock.protocols.nats.client import ConnectedClient
from penstock.protocols.nats.clients import Clients
from penstock.wire.jetstream.levels import VERSION

REQUEST_BYTES_MAX: Final = 8192
REQUEST_SECONDS: Final = 5.0
PAGE_CONNECTIONS: Final = 1024
REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found"}

Query = dict[str, list[str]]


class Monitor:
    """Serves the pages on listening sockets."""

    def __init__(self, listener: Listener, clients: Clients, clock: Clock) -> None:
        self._listener, self._clients, self._clock = listener, clients, clock
        self._started_us = clock.now_us()
        self._servers: list[asyncio.Server] = []
        self._pages: dict[str, Callable[[Query], dict[str, Any]]] = {
            "/varz": self._varz,
            "/connz": self._connz,
            "/healthz": lambda query: {"status": "ok"},
        }

    async def start(self) -> None:
        for sock in self._listener.sockets:
            server = await asyncio.start_server(self._serve, sock=sock, limit=REQUEST_BYTES_MAX)
            self._servers.append(server)

    def close(self) -> None:
        for server in self._servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer(request))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def answer(self, request: bytes) -> bytes:
        """The whole response to a request's head."""
        method, _, line = request.partition(b" ")
        target = urlsplit(line.partition(b" ")[0].decode("latin-1"))
        page = self._pages.get(target.path)
        if method not in (b"GET", b"HEAD"):
            return _response(400, {"error": "only GET is served"})
        if page is None:
            return _response(404, {"error": f"the pages are {', '.join(sorted(self._pages))}"})
        whole = _response(200, page(parse_qs(target.query)))
        return whole if method == b"GET" else whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    def _varz(self, query: Query) -> dict[str, Any]:
        clients, limits = self._clients, self._clients.limits
        host, port = self._listener.addresses[0]
        connected = list(clients.open.values())
        return {
            "server_id": clients.server_id,
            "server_name": clients.server_name,
            "version": VERSION,
            "proto": 1,
            "host": clients.address[0],
            "port": clients.address[1],
            "auth_required": clients.credentials.required,
            "max_connections": limits.connections,
            "max_subscriptions": limits.subscriptions,
            "max_payload": limits.payload_bytes,
            "max_pending": limits.pending_bytes,
            "ping_interval": int(limits.ping_seconds * 1e9),
            "ping_max": limits.pings_out,
            "http_host": host,
            "http_port": port,
            "start": time_text_us(self._started_us),
            "now": time_text_us(self._clock.now_us()),
            "connections": len(connected),
            "total_connections": clients.total,
            "in_msgs": clients.in_messages + sum(client.in_messages for client in connected),
            "out_msgs": clients.out_messages + sum(client.out_messages for client in connected),
            "in_bytes": clients.in_bytes + sum(client.in_bytes for client in connected),
            "out_bytes": clients.out_bytes + sum(client.out_bytes for client in connected),
            "slow_consumers": clients.gate.slow_consumers,
            "subscriptions": sum(len(client.subscriptions) for client in connected),
        }

    def _connz(self, query: Query) -> dict[str, Any]:
        offset = _number(query, "offset", 0)
        limit = _number(query, "limit", PAGE_CONNECTIONS)
        subjects = query.get("subs", ["0"])[0] not in ("0", "false")
        connected = list(self._clients.open.values())
        page = connected[offset : offset + limit]
        return {
            "server_id": self._clients.server_id,
            "now": time_text_us(self._clock.now_us()),
            "num_connections": len(page),
            "total": len(connected),
            "offset": offset,
            "limit": limit,
            "connections": [_connection(client, subjects) for client in page],
        }


def _connection(client: ConnectedClient, subjects: bool) -> dict[str, Any]:
    fields = {
        "cid": client.number,
        "kind": "Client",
        "type": "nats",
        "ip": client.address[0],
        "port": client.address[1],
        "in_msgs": client.in_messages,
        "out_msgs": client.out_messages,
        "in_bytes": client.in_bytes,
        "out_bytes": client.out_bytes,
        "subscriptions": len(client.subscriptions),
        "name": client.options.name,
        "lang": client.options.lang,
        "version": client.options.version,
    }
    if subjects:
        fields["subscriptions_list"] = [
            subscription.subject.decode("utf-8", "replace")
            for subscription in client.subscriptions.values()
        ]
    return fields


def _number(query: Query, name: str, default: int) -> int:
    value = query.get(name, [""])[0]
    return int(value) if value.isdecimal() else default


def _response(status: int, document: dict[str, Any]) -> bytes:
    body = msgspec.json.format(msgspec.json.encode(document), indent=2)
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
