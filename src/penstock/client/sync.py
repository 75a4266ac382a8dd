"""A client that blocks: over one connection of the standard library, one request at a time."""

from __future__ import annotations

import http.client
import select
import socket
import threading
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from penstock.client.exchange import (
    REPLY_SECONDS,
    BrokerReply,
    BrokerRequest,
    BrokerUnreachable,
)
from penstock.client.operations import BlockingOperations
from penstock.model import names


class SyncClient(BlockingOperations):
    """A blocking client of one broker; threads may share it, their requests take turns.

    Raises BrokerRefused with the broker's message, and BrokerUnreachable.
    """

    def __init__(
        self, url: str | None = None, namespace: str = str(names.DEFAULT_NAMESPACE)
    ) -> None:
        super().__init__(url, namespace)
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _exchange(self, request: BrokerRequest) -> BrokerReply:
        with self._lock:
            if self._connection is not None and _is_closed(self._connection.sock):
                self._disconnect()
            try:
                return self._send(request)
            except (OSError, http.client.HTTPException) as error:
                self._disconnect()
                raise BrokerUnreachable(self.url, _reason(error)) from error

    def _send(self, request: BrokerRequest) -> BrokerReply:
        connection = self._connection = self._connection or self._new_connection()
        connection.timeout = REPLY_SECONDS + request.wait_seconds
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        body = request.body or None
        connection.request(request.method, request.path, body, request.all_headers)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return BrokerReply(response.status, response.read(), headers)

    def _new_connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind: Any = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection: http.client.HTTPConnection = kind(
            parts.hostname, parts.port or kind.default_port
        )
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_closed(sock: socket.socket | None) -> bool:
    """Whether the broker has closed an idle connection: its end is then ready to be read."""
    return sock is None or bool(select.select([sock], [], [], 0)[0])


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
