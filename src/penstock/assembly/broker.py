"""A broker from its parts: which there are, who knows whom, and the order of up and down.

Up: the data directory is locked, sockets are bound, logs and topics open, doors open. Down, on
SIGTERM or SIGINT, is the reverse: doors drain, logs close, the lock goes. A second signal ends the
process at once: what was acknowledged is on disk by then.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from contextlib import closing

import structlog
import uvloop

from penstock.assembly import channels
from penstock.assembly.directory import locked
from penstock.assembly.events import configure_events
from penstock.assembly.fetch_node import FetchNode
from penstock.assembly.figures import figures_of, topic_figures
from penstock.assembly.stopping import Stop
from penstock.assembly.storage import Storage, log_settings, progress_of
from penstock.config import Address, Config, secrets
from penstock.delivery.channels.service import ChannelService
from penstock.delivery.consumers.deliveries import Deliveries
from penstock.doors.grpc.admin import admin_handlers
from penstock.doors.grpc.offsets import offset_handlers
from penstock.doors.grpc.server import GrpcDoor
from penstock.doors.http.app import App
from penstock.doors.http.backend import Backend, Compact, Sweep
from penstock.doors.http.body import Bodies
from penstock.doors.http.channels.app import ChannelApp
from penstock.doors.http.server import HttpDoor
from penstock.doors.listen import bound_address, listen
from penstock.doors.nats.clients import NatsLimits
from penstock.doors.nats.greeting import Credentials
from penstock.doors.nats.jetstream import JetStream
from penstock.doors.nats.server import NatsDoor
from penstock.host.collector import calm_collector
from penstock.host.memory import keep_memory
from penstock.model.metrics import Metric
from penstock.topics.fetcher import Fetcher
from penstock.topics.local import LocalSource
from penstock.topics.plans import Plans
from penstock.topics.pusher import Pusher
from penstock.topics.registry import LocalRegistry
from penstock.topics.topics import Topics

_events = structlog.get_logger()


def serve(config: Config, announce: Callable[[str], None]) -> None:
    """Run a broker or a node until SIGTERM or SIGINT; raises StartRefused when it cannot start.

    `announce` gets one line for every door that is open.
    """
    configure_events(config.log.level, config.log.format, secrets(config))
    calm_collector()
    keep_memory()
    # A node keeps nothing, so that it may read beside a broker in the same directory.
    held = contextlib.nullcontext() if config.role == "fetch" else locked(config.data)
    with held, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, announce))


async def _serve(config: Config, announce: Callable[[str], None]) -> None:
    node = FetchNode if config.role == "fetch" else Broker
    await node(config, announce).run()


class Broker:
    """All parts of one broker, for the time of one `run`."""

    def __init__(self, config: Config, announce: Callable[[str], None]) -> None:
        self._config = config
        self._announce = announce
        self._stop = Stop("broker")
        self._storage: Storage | None = None
        self.topics: Topics
        self.source: LocalSource
        self.registry: LocalRegistry
        self.fetcher: Fetcher
        self.plans: Plans
        self.compact: Compact
        self.sweep: Sweep
        self.channels: ChannelService

    async def run(self) -> None:
        """Open everything, serve until a signal, drain, and close everything in reverse."""
        self._stop.listen()
        config = self._config
        async with contextlib.AsyncExitStack() as parts:
            http_socket = parts.enter_context(closing(listen(config.http.listen, "--http")))
            nats_socket = parts.enter_context(closing(listen(config.nats.listen, "--nats")))
            address = bound_address(config.http.listen, http_socket)
            drain_seconds = config.shutdown.drain_seconds
            grpc_door = GrpcDoor(config.grpc.listen, config.grpc.max_calls, drain_seconds)
            storage = self._storage = Storage(config, address)
            parts.push_async_callback(storage.close)
            await storage.open()
            await self._open_topics(storage, address)
            parts.push_async_callback(self.topics.close)
            pusher = Pusher(self.topics, log_settings(config))
            parts.push_async_callback(pusher.close)
            host = storage.topic_host()
            nats = NatsDoor(nats_socket, *nats_settings(config))
            jetstream = JetStream(nats, self.topics, host, progress_of(config, host))
            jetstream.open()
            parts.push_async_callback(jetstream.close)
            serving = channels.serving(config, host, self.topics, self.source, pusher)
            self.channels = await parts.enter_async_context(serving)
            await self._serve_doors(http_socket, grpc_door, nats, jetstream, pusher)
        _events.info("broker stopped")

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether requests are served in full now, and what there is to tell about it."""
        if self._stop.asked or self._storage is None:
            return False, {"message": "the broker is shutting down"}
        return self._storage.ready()

    def figures(self) -> list[Metric]:
        """What the parts have counted."""
        if self._storage is None:
            return []
        topics = topic_figures(self.topics, self.fetcher)
        return [*figures_of(self._storage), *topics, *self.channels.figures()]

    async def _open_topics(self, storage: Storage, address: Address) -> None:
        self.topics = Topics(storage.topic_host())
        self.source = LocalSource(self.topics)
        self.registry = LocalRegistry(self.topics, str(address))
        self.fetcher = Fetcher(self.topics, self.source, self._config.fetch.max_running)
        self.plans = Plans(self.topics, storage.described)
        self.compact, self.sweep = storage.compact, storage.sweep
        await self.topics.open()

    def _backend(self, pusher: Pusher, deliveries: Deliveries) -> Backend:
        http = self._config.http
        return Backend(
            admin=self.topics,
            registry=self.registry,
            source=self.source,
            fetcher=self.fetcher,
            bodies=Bodies(http.max_body_bytes, http.max_pending_bytes),
            topics=self.topics,
            plans=self.plans,
            compact=self.compact,
            sweep=self.sweep,
            pusher=pusher,
            deliveries=deliveries,
        )

    async def _serve_doors(
        self,
        http_socket: socket.socket,
        grpc_door: GrpcDoor,
        nats: NatsDoor,
        jetstream: JetStream,
        pusher: Pusher,
    ) -> None:
        backend = self._backend(pusher, jetstream.deliveries)
        channel_app = ChannelApp(self.channels, backend.bodies, channels.gateway(self._config))
        app = App(self.readiness, self.figures, backend, channel_app)
        door = HttpDoor(app, http_socket, self._config.shutdown.drain_seconds)
        url = f"http://{bound_address(self._config.http.listen, http_socket)}"
        async with asyncio.TaskGroup() as doors:
            doors.create_task(door.serve())
            await door.ready()
            await grpc_door.start(admin_handlers(self.topics) | offset_handlers(self.registry))
            await nats.start()
            self._announce(f"nats listening on nats://{nats.address}")
            self._announce(f"http listening on {url}")
            self._announce(f"grpc listening on {grpc_door.address}")
            _events.info(
                "broker ready", http=url, grpc=str(grpc_door.address), data=self._config.data
            )
            await self._stop.wait()
            app.drain()
            door.drain()
            # Before the door: whoever waits for messages is told.
            await jetstream.close()
            await nats.drain(self._config.shutdown.drain_seconds)
            await grpc_door.drain()


def nats_settings(config: Config) -> tuple[NatsLimits, Credentials]:
    nats = config.nats
    limits = NatsLimits(
        connections=nats.max_connections,
        payload_bytes=nats.max_payload_bytes,
        pending_bytes=nats.max_pending_bytes,
        subscriptions=nats.max_subscriptions,
        ping_seconds=nats.ping_interval_seconds,
        pings_out=nats.max_pings_out,
    )
    users = {nats.user: nats.password} if nats.user else {}
    return limits, Credentials(nats.token, users)
