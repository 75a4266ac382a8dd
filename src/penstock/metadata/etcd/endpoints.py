"""The endpoints of an etcd cluster: a connection to each, and which one to call next.

An endpoint that did not reply is *suspected*: it is called again only if no other is connected. A
reply clears the suspicion; if all endpoints are suspected, all suspicions are cleared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import grpc

from penstock.formats.protobuf import Method
from penstock.host.tasks import Tasks
from penstock.metadata.interface import MetadataUnavailable
from penstock.model.errors import ConfigError

RECEIVE_BYTES_MAX: Final = 64 << 20

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", RECEIVE_BYTES_MAX),
    # Detects a silent server on streams, too; etcd forbids pings more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Each client has its own connections, and reaches the cluster without a proxy.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_SCHEMES: Final = ("http", "https")


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Where etcd is, and the credentials; `repr` shows no secrets."""

    endpoints: tuple[str, ...]
    """`http://host:port` or `https://host:port`; without a scheme it is http."""
    call_seconds: float = 5.0
    """A call without a reply in this time raises MetadataUnavailable."""
    user: str = ""
    password: str = field(default="", repr=False)
    ca_pem: bytes | None = field(default=None, repr=False)
    certificate_pem: bytes | None = field(default=None, repr=False)
    private_key_pem: bytes | None = field(default=None, repr=False)


class EtcdEndpoint:
    """One member of the cluster."""

    def __init__(self, target: str, channel: Any) -> None:
        self.target = target
        self.suspected = False
        self._channel = channel
        self._unary: dict[str, Any] = {}

    @property
    def connected(self) -> bool:
        return bool(self._channel.get_state() is grpc.ChannelConnectivity.READY)

    async def connect(self) -> EtcdEndpoint:
        """Return once it is connected, however long that takes."""
        await self._channel.channel_ready()
        return self

    def unary(self, method: Method) -> Any:
        """The call with one request and one response."""
        if method.path not in self._unary:
            self._unary[method.path] = self._channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return self._unary[method.path]

    def stream(self, method: Method) -> Any:
        """The call with a stream of requests and one of responses."""
        return self._channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    async def close(self) -> None:
        await self._channel.close()


class EtcdEndpoints:
    """All members of the cluster; create it where an event loop runs. Raises ConfigError."""

    def __init__(self, settings: EtcdSettings) -> None:
        channels = open_channels(settings, grpc.aio)
        self._all = [EtcdEndpoint(target, channel) for target, channel in channels]

    async def pick(self, seconds: float) -> EtcdEndpoint:
        """A connected endpoint, preferably not a suspected one; raises MetadataUnavailable."""
        if all(endpoint.suspected for endpoint in self._all):
            for endpoint in self._all:
                endpoint.suspected = False
        trusted = [endpoint for endpoint in self._all if not endpoint.suspected]
        for endpoint in trusted:
            if endpoint.connected:
                return endpoint
        suspected = [endpoint for endpoint in self._all if endpoint.suspected]
        connected = await _first(trusted, seconds / 2 if suspected else seconds)
        if connected is not None:
            return connected
        for endpoint in trusted:
            endpoint.suspected = True
        connected = await _first(suspected, seconds / 2) if suspected else None
        if connected is None:
            targets = ", ".join(endpoint.target for endpoint in self._all)
            raise MetadataUnavailable(f"no connection to etcd at {targets} in {seconds:.1f} s")
        return connected

    async def close(self) -> None:
        for endpoint in self._all:
            await endpoint.close()


def open_channels(settings: EtcdSettings, api: Any) -> list[tuple[str, Any]]:
    """Open a connection to each member; returns them with their `host:port`. Raises ConfigError.

    `api` is `grpc.aio`, or `grpc` for blocking calls.
    """
    if not settings.endpoints:
        raise ConfigError("etcd needs at least one endpoint")
    targets = [parse_endpoint(text) for text in settings.endpoints]
    return [(target, _channel(target, tls, settings, api)) for target, tls in targets]


def parse_endpoint(text: str) -> tuple[str, bool]:
    """Parse an endpoint to `host:port` and whether to use TLS; raises ConfigError."""
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        complete = url.scheme in _SCHEMES and url.hostname and url.port
    except ValueError:
        complete = False
    if not complete or url.username or url.path.strip("/") or url.query:
        # A malformed address may contain a password, so the error does not repeat it.
        raise ConfigError("an etcd endpoint must be http://host:port or https://host:port")
    return url.netloc, url.scheme == "https"


def _channel(target: str, tls: bool, settings: EtcdSettings, api: Any) -> Any:
    if not tls:
        return api.insecure_channel(target, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        settings.ca_pem, settings.private_key_pem, settings.certificate_pem
    )
    return api.secure_channel(target, credentials, options=_OPTIONS)


async def _first(endpoints: Iterable[EtcdEndpoint], seconds: float) -> EtcdEndpoint | None:
    """The first endpoint that is connected within this time; None if none is."""
    tasks = Tasks()
    attempts = [tasks.start(endpoint.connect()) for endpoint in endpoints]
    try:
        done, _ = await asyncio.wait(attempts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await tasks.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
    return next((attempt.result() for attempt in attempts if attempt in done), None)
