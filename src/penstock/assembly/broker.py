"""Builds a broker from its parts, and starts and stops them in order.

Start: lock the data directory, bind the sockets, open logs and topics, accept connections. Stop, at
SIGTERM or SIGINT: drain the servers, close the logs, release the lock. A second signal ends the
process at once; acknowledged messages are as durable as promised.
"""

import asyncio
import contextlib
from collections.abc import Callable

import structlog
import uvloop

from penstock.assembly.channels import channel_gateway, channel_service
from penstock.assembly.directory import locked
from penstock.assembly.events import configure_events
from penstock.assembly.fetch_node import FetchNode, http_limits
from penstock.assembly.jetstream import open_jetstream
from penstock.assembly.stopping import Stop
from penstock.assembly.storage import Storage, log_settings, progress_of
from penstock.config import Address, Config, secrets
from penstock.delivery.channels import ChannelService
from penstock.delivery.consumers import Deliveries
from penstock.host.loop_watch import LoopStalls
from penstock.host.process import calm_collector, keep_memory
from penstock.model.metrics import Metric
from penstock.protocols import Listener, listen
from penstock.protocols.grpc import GrpcServer, admin_handlers, offset_handlers
from penstock.protocols.http import App, Backend, Bodies, Compact, HttpServer, Sweep
from penstock.protocols.http.channels import channel_router
from penstock.protocols.nats import Credentials, NatsLimits, NatsServer
from penstock.protocols.nats.jetstream import JetStream
from penstock.topics import Fetcher, LocalAdmin, LocalOffsets, LocalSource, Plans, Pusher, Topics

_events = structlog.get_logger()


def serve(config: Config, announce: Callable[[str], None]) -> None:
    """Run a broker or a fetch node until SIGTERM or SIGINT; raises StartRefused.

    `announce` receives a line for each address of a listener.
    """
    configure_events(config.log.level, config.log.format, secrets(config))
    calm_collector()
    keep_memory()
    # A fetch node stores nothing, so that it may share the directory of a broker.
    lock = contextlib.nullcontext() if config.role == "fetch" else locked(config.data)
    with lock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, announce))


async def _serve(config: Config, announce: Callable[[str], None]) -> None:
    node = FetchNode if config.role == "fetch" else Broker
    await node(config, announce).run()


class Broker:
    """All parts of a broker during `run`."""

    def __init__(self, config: Config, announce: Callable[[str], None]) -> None:
        self._config = config
        self._announce = announce
        self._stop = Stop("broker")
        self._storage: Storage | None = None
        self._stalls: LoopStalls | None = None
        self.topics: Topics
        self.source: LocalSource
        self.admin: LocalAdmin
        self.offsets: LocalOffsets
        self.fetcher: Fetcher
        self.plans: Plans
        self.compact: Compact
        self.sweep: Sweep
        self.channels: ChannelService
        self._http: HttpServer

    async def run(self) -> None:
        """Open all parts, serve until a signal, drain, and close the parts in reverse order."""
        self._stop.listen()
        config = self._config
        async with contextlib.AsyncExitStack() as parts:
            stalls = self._stalls = LoopStalls()
            parts.push_async_callback(stalls.close)
            http_listener = parts.enter_context(listen(config.http.listen, "--http"))
            nats_listener = parts.enter_context(listen(config.nats.listen, "--nats"))
            address = http_listener.addresses[0]
            drain_seconds = config.shutdown.drain_seconds
            grpc_server = GrpcServer(config.grpc.listen, config.grpc.max_calls, drain_seconds)
            storage = self._storage = Storage(config, address)
            parts.push_async_callback(storage.close)
            await storage.open()
            await self._open_topics(storage, address)
            parts.push_async_callback(self.topics.close)
            pusher = Pusher(self.topics, log_settings(config))
            parts.push_async_callback(pusher.close)
            host = storage.topic_host()
            nats = NatsServer(nats_listener, *nats_settings(config))
            waits = config.nats.no_wait_with_expires == "wait_for_first"
            progress = progress_of(config, host)
            jetstream = open_jetstream(nats, self.topics, host, progress, wait_for_first=waits)
            parts.push_async_callback(jetstream.close)
            service = channel_service(config, host, self.topics)
            self.channels = await parts.enter_async_context(service)
            await self._serve_protocols(http_listener, grpc_server, nats, jetstream, pusher)
        _events.info("broker stopped")

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether the broker is ready, with details for `/readyz`."""
        if self._stop.requested or self._storage is None:
            return False, {"message": "the broker is shutting down"}
        return self._storage.ready()

    def metrics(self) -> list[Metric]:
        """The metrics of all parts."""
        if self._storage is None or self._stalls is None:
            return []
        return [
            *self._storage.metrics(),
            *self.topics.metrics(),
            *self.fetcher.metrics(),
            *self.channels.metrics(),
            *self._stalls.metrics(),
            *self._http.metrics(),
        ]

    async def _open_topics(self, storage: Storage, address: Address) -> None:
        host = storage.topic_host()
        self.topics = Topics(host)
        self.admin = LocalAdmin(self.topics, host)
        self.source = LocalSource(self.topics)
        self.offsets = LocalOffsets(self.topics, str(address))
        self.fetcher = Fetcher(self.admin, self.source, self._config.fetch.max_running)
        self.plans = Plans(self.topics, storage.described)
        self.compact, self.sweep = storage.compact, storage.sweep
        await self.topics.start()

    def _backend(self, pusher: Pusher, deliveries: Deliveries) -> Backend:
        http = self._config.http
        return Backend(
            admin=self.admin,
            registry=self.offsets,
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

    async def _serve_protocols(
        self,
        http_listener: Listener,
        grpc_server: GrpcServer,
        nats: NatsServer,
        jetstream: JetStream,
        pusher: Pusher,
    ) -> None:
        backend = self._backend(pusher, jetstream.deliveries)
        gateway = channel_gateway(self._config, backend.bodies)
        channel_api = channel_router(self.channels, backend.bodies, gateway)
        app = App(self.readiness, self.metrics, backend, channel_api)
        assert self._storage is not None
        lease = self._storage.topic_host().ownership
        server = self._http = HttpServer(
            app,
            http_listener,
            self._config.shutdown.drain_seconds,
            lease,
            http_limits(self._config),
        )
        async with asyncio.TaskGroup() as server_tasks:
            server_tasks.create_task(server.serve())
            await server.ready()
            await grpc_server.start(admin_handlers(self.admin) | offset_handlers(self.offsets))
            await nats.start()
            listening = {
                "nats": [f"nats://{address}" for address in nats.addresses],
                "http": [f"http://{address}" for address in http_listener.addresses],
                "grpc": list(map(str, grpc_server.addresses)),
            }
            for protocol, addresses in listening.items():
                for address in addresses:
                    self._announce(f"{protocol} listening on {address}")
            joined = {protocol: ",".join(addresses) for protocol, addresses in listening.items()}
            _events.info("broker ready", **joined, data=self._config.data)
            self.topics.unopened.open_in_background()
            await self._stop.wait()
            await self.topics.unopened.close()
            app.drain()
            server.drain()
            # Before the server drains, so that pending pull requests receive a status.
            await jetstream.close()
            await nats.drain(self._config.shutdown.drain_seconds)
            await grpc_server.drain()


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
