"""The endpoints of an etcd cluster: a connection to each, and which one to ask next.

An endpoint that did not answer is *doubted*: it is asked again only when no other is connected.
An answer clears the doubt, and when all are doubted none is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import grpc

from penstock.formats.protobuf import Method
from penstock.metadata.interface import MetadataUnavailable
from penstock.model.errors import ConfigError

RECEIVE_BYTES_MAX: Final = 64 << 20

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", RECEIVE_BYTES_MAX),
    # A silent server is found out on streams too; etcd forbids asking more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Each client has connections of its own, and reaches the cluster without a proxy.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_SCHEMES: Final = ("http", "https")


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Where etcd is and how to be let in; secrets do not show in its text."""

    endpoints: tuple[str, ...]
    """`http://host:port` or `https://host:port`; without a scheme it is http."""
    call_seconds: float = 5.0
    """A call that is not answered in this time raises MetadataUnavailable."""
    user: str = ""
    password: str = field(default="", repr=False)
    ca_pem: bytes | None = field(default=None, repr=False)
    certificate_pem: bytes | None = field(default=None, repr=False)
    private_key_pem: bytes | None = field(default=None, repr=False)


class Endpoint:
    """One member of the cluster."""

    def __init__(self, target: str, channel: Any) -> None:
        self.target = target
        self.doubted = False
        self._channel = channel
        self._unary: dict[str, Any] = {}

    @property
    def connected(self) -> bool:
        return bool(self._channel.get_state() is grpc.ChannelConnectivity.READY)

    async def connect(self) -> Endpoint:
        """Return once it is connected, trying for as long as that takes."""
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


class Endpoints:
    """All members; make it where an event loop runs. Raises ConfigError."""

    def __init__(self, settings: EtcdSettings) -> None:
        if not settings.endpoints:
            raise ConfigError("etcd needs at least one endpoint")
        targets = [parse_endpoint(text) for text in settings.endpoints]
        self._all = [Endpoint(target, _channel(target, tls, settings)) for target, tls in targets]

    async def pick(self, seconds: float) -> Endpoint:
        """A connected endpoint, one without doubts if there is one; raises MetadataUnavailable."""
        if all(endpoint.doubted for endpoint in self._all):
            for endpoint in self._all:
                endpoint.doubted = False
        trusted = [endpoint for endpoint in self._all if not endpoint.doubted]
        for endpoint in trusted:
            if endpoint.connected:
                return endpoint
        doubted = [endpoint for endpoint in self._all if endpoint.doubted]
        found = await _first(trusted, seconds / 2 if doubted else seconds)
        if found is not None:
            return found
        for endpoint in trusted:
            endpoint.doubted = True
        found = await _first(doubted, seconds / 2) if doubted else None
        if found is None:
            targets = ", ".join(endpoint.target for endpoint in self._all)
            raise MetadataUnavailable(f"no connection to etcd at {targets} in {seconds:.1f} s")
        return found

    async def close(self) -> None:
        for endpoint in self._all:
            await endpoint.close()


def parse_endpoint(text: str) -> tuple[str, bool]:
    """`host:port` and whether TLS is wanted; raises ConfigError."""
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        complete = url.scheme in _SCHEMES and url.hostname and url.port
    except ValueError:
        complete = False
    if not complete or url.username or url.path.strip("/") or url.query:
        # A malformed address may hold a password, so it is not repeated.
        raise ConfigError("an etcd endpoint must be http://host:port or https://host:port")
    return url.netloc, url.scheme == "https"


def _channel(target: str, tls: bool, settings: EtcdSettings) -> Any:
    if not tls:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        settings.ca_pem, settings.private_key_pem, settings.certificate_pem
    )
    return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)


async def _first(endpoints: Iterable[Endpoint], seconds: float) -> Endpoint | None:
    """The first to be connected in that time."""
    tasks = [asyncio.create_task(endpoint.connect()) for endpoint in endpoints]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next((task.result() for task in tasks if task in done), None)
