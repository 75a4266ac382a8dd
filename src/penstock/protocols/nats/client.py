"""A connected client and its subscriptions, as the other modules of the package see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.protocols.nats.greeting import Options


@dataclass(slots=True, eq=False)
class Subscription:
    """A subscription of one client, identified by the sid that the client chose."""

    client: ConnectedClient
    sid: bytes
    subject: bytes
    queue: bytes
    delivered: int = 0
    most: int | None = None
    """The number of deliveries after which the subscription ends; None means no limit."""


class ConnectedClient(Protocol):
    """Sends to one client; implemented by `ClientConnection`."""

    number: int
    options: Options
    open: bool
    address: tuple[str, int]
    in_messages: int
    in_bytes: int
    out_messages: int
    out_bytes: int

    @property
    def subscriptions(self) -> Mapping[bytes, Subscription]: ...

    def send(self, data: bytes) -> None:
        """Write protocol text at the end of the turn."""

    def deliver(
        self, to: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        """Send one message to a subscription."""

    def deliver_rows(
        self,
        to: Subscription,
        subjects: bytes | Sequence[bytes],
        replies: Sequence[bytes] | None,
        headers: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> int:
        """Send a run to a subscription; returns how many messages it accepted."""

    def require_lease(self) -> None:
        """Close the connection instead of writing what is sent next, unless the lease is valid
        when it is written.
        """

    async def drained(self) -> None:
        """Wait until the client has read most of its pending output, or has disconnected."""

    def hold(self) -> None:
        """Read nothing from the client until `resume`."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """Write pending output and close the connection."""
