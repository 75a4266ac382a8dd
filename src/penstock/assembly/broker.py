"""A broker from its parts: which there are, who knows whom, and the order of up and down.

Up: the data directory is locked, sockets are bound, logs open, doors open. Down, on SIGTERM or
SIGINT, is the reverse: doors drain, logs close, the lock goes. A second signal ends the process at
once: what was acknowledged is on disk by then.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Final

import structlog
import uvloop

from penstock.assembly.directory import locked
from penstock.assembly.events import configure_events
from penstock.assembly.figures import figures_of
from penstock.assembly.storage import Storage
from penstock.config import Config, secrets
from penstock.doors.http.app import App
from penstock.doors.http.server import HttpDoor
from penstock.doors.listen import bound_address, listen
from penstock.host.collector import calm_collector
from penstock.model.errors import StartRefused
from penstock.model.metrics import Metric

SIGNAL_EXIT_BASE: Final = 128
SECOND_SIGNAL_SECONDS: Final = 0.5
"""A signal to a group of processes comes twice when `make` or a shell passes it on as well."""

_events = structlog.get_logger()


def serve(config: Config, announce: Callable[[str], None]) -> None:
    """Run a broker until SIGTERM or SIGINT; `announce` gets one line for every door that is open.

    Raises StartRefused when it cannot start.
    """
    _refuse_what_is_not_built(config)
    configure_events(config.log.level, config.log.format, secrets(config))
    calm_collector()
    with locked(config.data), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Broker(config, announce).run())


class Broker:
    """All parts of one broker, for the time of one `run`."""

    def __init__(self, config: Config, announce: Callable[[str], None]) -> None:
        self._config = config
        self._announce = announce
        self._stop = asyncio.Event()
        self._stop_at_seconds = 0.0
        self._storage: Storage | None = None

    async def run(self) -> None:
        """Open everything, serve until a signal, drain, and close everything in reverse."""
        self._listen_to_signals()
        with contextlib.closing(listen(self._config.http.listen, "--http")) as http_socket:
            storage = self._storage = Storage(self._config)
            try:
                await storage.open()
                await self._serve_doors(http_socket)
            finally:
                await storage.close()
        _events.info("broker stopped")

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether requests are served in full now, and what there is to tell about it."""
        if self._stop.is_set() or self._storage is None:
            return False, {"message": "the broker is shutting down"}
        return self._storage.ready()

    def figures(self) -> list[Metric]:
        """What the parts have counted."""
        return [] if self._storage is None else figures_of(self._storage)

    async def _serve_doors(self, http_socket: socket.socket) -> None:
        door = HttpDoor(
            App(self.readiness, self.figures), http_socket, self._config.shutdown.drain_seconds
        )
        url = f"http://{bound_address(self._config.http.listen, http_socket)}"
        async with asyncio.TaskGroup() as doors:
            doors.create_task(door.serve())
            await door.ready()
            self._announce(f"http listening on {url}")
            _events.info("broker ready", http=url, data=self._config.data)
            await self._stop.wait()
            door.drain()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        now_seconds = asyncio.get_running_loop().time()
        if not self._stop.is_set():
            _events.info("broker stopping", signal=number.name)
            self._stop_at_seconds = now_seconds
            self._stop.set()
        elif now_seconds - self._stop_at_seconds >= SECOND_SIGNAL_SECONDS:
            os._exit(SIGNAL_EXIT_BASE + number)


def _refuse_what_is_not_built(config: Config) -> None:
    """A setting that would be read and not obeyed is worse than none."""
    if config.storage.mode == "memory":
        raise StartRefused("storage.mode memory does not exist yet; use local_only or wal_cloud")
