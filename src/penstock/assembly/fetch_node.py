"""A node that only fetches, from its parts: it asks a broker where messages are, and keeps nothing.

Messages come from the bucket, and the newest from their owners; so nodes take the readers off the
brokers, and any number of them may run. One that loses its broker answers with errors until the
broker is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from penstock.assembly.figures import fetch_figures
from penstock.assembly.stopping import Stop
from penstock.assembly.storage import bucket
from penstock.config import Config
from penstock.doors.http.app import App
from penstock.doors.http.backend import Backend
from penstock.doors.http.body import Bodies
from penstock.doors.http.server import HttpDoor
from penstock.doors.listen import bound_address, listen
from penstock.host.clock import Clock
from penstock.host.threads import Workers
from penstock.metadata.remote_admin import RemoteAdmin
from penstock.metadata.remote_calls import RemoteCalls
from penstock.metadata.remote_offsets import RemoteOffsets
from penstock.model.metrics import Metric
from penstock.objects.stores import Stores
from penstock.topics.fetcher import Fetcher
from penstock.topics.owners import Owners
from penstock.topics.remote import RemoteSource

THREADS: Final = 2
_events = structlog.get_logger()


class FetchNode:
    """All parts of one node, for the time of one `run`; make it where an event loop runs."""

    def __init__(self, config: Config, announce: Callable[[str], None]) -> None:
        self._config, self._announce = config, announce
        self._stop = Stop("fetch node")
        self._calls = RemoteCalls(str(config.metadata))
        self._stores = Stores(bucket(config), config.storage.stores, Path(config.data))
        self._threads = Workers(THREADS, "fetch")
        self._owners = Owners()
        self._admin = RemoteAdmin(self._calls)
        self._registry = RemoteOffsets(self._calls, Clock())
        self._source = RemoteSource(
            self._admin, self._registry, self._stores, self._owners, self._threads, Clock()
        )
        self._fetcher = Fetcher(self._admin, self._source, config.fetch.max_running)

    async def run(self) -> None:
        """Serve until a signal, drain, and close everything."""
        self._stop.listen()
        try:
            with contextlib.closing(listen(self._config.http.listen, "--http")) as http_socket:
                await self._serve(http_socket)
        finally:
            await self._close()
        _events.info("fetch node stopped")

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether fetches can be served now."""
        if self._stop.asked:
            return False, {"message": "the node is shutting down"}
        if not self._calls.connected:
            return False, {"message": f"the broker at {self._calls.address} does not answer"}
        return True, {"metadata": self._calls.address}

    def figures(self) -> list[Metric]:
        """What the parts have counted."""
        return fetch_figures(self._fetcher)

    async def _serve(self, http_socket: socket.socket) -> None:
        http = self._config.http
        bodies = Bodies(http.max_body_bytes, http.max_pending_bytes)
        backend = Backend(self._admin, self._registry, self._source, self._fetcher, bodies)
        app = App(self.readiness, self.figures, backend)
        door = HttpDoor(app, http_socket, self._config.shutdown.drain_seconds)
        url = f"http://{bound_address(http.listen, http_socket)}"
        async with asyncio.TaskGroup() as doors:
            doors.create_task(door.serve())
            await door.ready()
            self._announce(f"http listening on {url}")
            _events.info("fetch node ready", http=url, metadata=self._calls.address)
            await self._stop.wait()
            app.drain()
            door.drain()

    async def _close(self) -> None:
        await self._owners.close()
        await self._calls.close()
        await self._stores.close()
        await self._threads.close()
