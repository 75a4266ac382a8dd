"""Builds a fetch node: it serves reads, locates messages through a broker, and stores nothing.

A fetch node reads messages from the bucket, and the newest ones from their owners. So any number of
nodes can take load from the brokers. A node that cannot reach its broker replies with errors until
the broker is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from penstock.assembly.stopping import Stop
from penstock.assembly.storage import bucket
from penstock.config import Config
from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.threads import WorkerThreads
from penstock.metadata.remote import RemoteAdmin, RemoteCalls, RemoteOffsets
from penstock.model.metrics import Metric
from penstock.objects import Stores
from penstock.protocols import Listener, listen
from penstock.protocols.http import App, Backend, Bodies, HttpLimits, HttpServer
from penstock.topics import Fetcher
from penstock.topics.remote import Owners, RemoteSource

THREADS: Final = 2
_events = structlog.get_logger()


class FetchNode:
    """All parts of a fetch node during `run`; create it within a running event loop."""

    def __init__(self, config: Config, announce: Callable[[str], None]) -> None:
        self._config, self._announce = config, announce
        self._stop = Stop("fetch node")
        self._calls = RemoteCalls(str(config.metadata))
        self._stores = Stores(bucket(config), config.storage.stores, Path(config.data))
        self._threads = WorkerThreads(THREADS, "fetch")
        self._child = Child()
        self._owners = Owners()
        self._admin = RemoteAdmin(self._calls)
        self._registry = RemoteOffsets(self._calls, Clock())
        self._source = RemoteSource(
            self._admin,
            self._registry,
            self._stores,
            self._owners,
            self._threads,
            self._child,
            Clock(),
        )
        self._fetcher = Fetcher(self._admin, self._source, config.fetch.max_running)
        self._http: HttpServer

    async def run(self) -> None:
        """Serve until a signal, drain, and close all parts."""
        self._stop.listen()
        try:
            with listen(self._config.http.listen, "--http") as listener:
                await self._serve(listener)
        finally:
            await self._close()
        _events.info("fetch node stopped")

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether fetches can be served, with details for `/readyz`."""
        if self._stop.requested:
            return False, {"message": "the node is shutting down"}
        if not self._calls.connected:
            return False, {"message": f"the broker at {self._calls.address} does not answer"}
        return True, {"metadata": self._calls.address}

    def metrics(self) -> list[Metric]:
        """The metrics of all parts."""
        return [*self._fetcher.metrics(), *self._http.metrics()]

    async def _serve(self, listener: Listener) -> None:
        http = self._config.http
        bodies = Bodies(http.max_body_bytes, http.max_pending_bytes)
        backend = Backend(self._admin, self._registry, self._source, self._fetcher, bodies)
        app = App(self.readiness, self.metrics, backend)
        drain_seconds, limits = self._config.shutdown.drain_seconds, http_limits(self._config)
        server = self._http = HttpServer(app, listener, drain_seconds, limits=limits)
        urls = [f"http://{address}" for address in listener.addresses]
        async with asyncio.TaskGroup() as server_tasks:
            server_tasks.create_task(server.serve())
            await server.ready()
            for url in urls:
                self._announce(f"http listening on {url}")
            _events.info("fetch node ready", http=",".join(urls), metadata=self._calls.address)
            await self._stop.wait()
            app.drain()
            server.drain()

    async def _close(self) -> None:
        await self._owners.close()
        await self._calls.close()
        await self._stores.close()
        await self._child.close()
        await self._threads.close()


def http_limits(config: Config) -> HttpLimits:
    """The limits of the HTTP server of a fetch node or a broker."""
    http = config.http
    return HttpLimits(
        head_bytes=http.max_head_bytes,
        connections=http.max_connections,
        head_seconds=http.head_timeout_seconds,
        idle_seconds=http.idle_timeout_seconds,
        stall_seconds=http.stall_timeout_seconds,
    )
