"""Renews leases of etcd by blocking calls, over connections of its own.

A thread makes these calls, so a busy event loop does not delay them; nothing here uses `grpc.aio`.
A call tries one member after the other until one replies or the timeout is over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from penstock.formats.protobuf import Method
from penstock.metadata.etcd.calls import HAS_LEADER, REPEAT_SECONDS, TokenRefused, translate
from penstock.metadata.etcd.endpoints import EtcdSettings, open_channels
from penstock.metadata.etcd.messages import AUTHENTICATE, LEASE_KEEP_ALIVE, message
from penstock.metadata.interface import LeaseExpired, LeaseId, MetadataUnavailable


class EtcdRenewer:
    """Implements Renewer; one thread at a time calls `keep_alive`."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._members = deque(open_channels(settings, grpc))
        """The first is called next: it is the one that replied last, until a call to it fails."""
        self._token = ""
        self._closed = False

    def keep_alive(self, lease: LeaseId, timeout_seconds: float) -> float:
        deadline = time.monotonic() + timeout_seconds
        share = timeout_seconds / len(self._members)
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return self._renew(*self._members[0], lease, min(share, left))
            except MetadataUnavailable as error:
                if isinstance(error, TokenRefused):
                    self._token = ""
                else:
                    self._members.rotate(-1)
                if self._closed or deadline - time.monotonic() <= REPEAT_SECONDS:
                    raise
                time.sleep(REPEAT_SECONDS)

    def close(self) -> None:
        self._closed = True
        for _, channel in self._members:
            channel.close()

    def _renew(self, target: str, channel: Any, lease: LeaseId, seconds: float) -> float:
        metadata = self._logged_in(target, channel, seconds)
        call = channel.stream_stream(LEASE_KEEP_ALIVE.path, **_codec(LEASE_KEEP_ALIVE))
        request = message("LeaseKeepAliveRequest", ID=lease)
        with self._translated(LEASE_KEEP_ALIVE, target):
            responses = call(iter([request]), timeout=seconds, metadata=(*metadata, HAS_LEADER))
            try:
                response = next(responses, None)
            finally:
                responses.cancel()
        if response is None:
            raise MetadataUnavailable(f"etcd at {target} ended the stream without an answer")
        if response.TTL <= 0:
            raise LeaseExpired(f"lease {lease} has ended")
        return float(response.TTL)

    def _logged_in(self, target: str, channel: Any, seconds: float) -> tuple[tuple[str, str], ...]:
        """The metadata that a call carries; logs in if necessary."""
        settings = self._settings
        if not settings.user:
            return ()
        if not self._token:
            call = channel.unary_unary(AUTHENTICATE.path, **_codec(AUTHENTICATE))
            request = message("AuthenticateRequest", name=settings.user, password=settings.password)
            with self._translated(AUTHENTICATE, target):
                self._token = str(call(request, timeout=seconds).token)
        return (("token", self._token),)

    @contextmanager
    def _translated(self, method: Method, target: str) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise translate(error, method, target, logged_in=bool(self._token)) from None
        except ValueError as error:
            # gRPC raises this for a call on a closed channel.
            if not self._closed:
                raise
            raise MetadataUnavailable(f"the connection to etcd is closed: {error}") from None


def _codec(method: Method) -> dict[str, Any]:
    return {
        "request_serializer": method.request.SerializeToString,
        "response_deserializer": method.response.FromString,
    }
