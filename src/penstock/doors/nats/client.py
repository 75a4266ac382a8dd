"""A client of the door and what it subscribed to, as the other rooms see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.doors.nats.greeting import Options


@dataclass(slots=True, eq=False)
class Subscription:
    """What a client asked for under a sid of its own."""

    client: Client
    sid: bytes
    subject: bytes
    queue: bytes
    delivered: int = 0
    most: int | None = None
    """After so many deliveries it ends."""


class Client(Protocol):
    """Implemented by Connection."""

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
        """Write soon what is no message."""

    def deliver(
        self, to: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        """One message for a subscription."""

    def deliver_rows(
        self,
        to: Subscription,
        subjects: bytes | Sequence[bytes],
        replies: Sequence[bytes] | None,
        headers: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> int:
        """A run for a subscription; how many it took."""

    async def drained(self) -> None:
        """Wait until the client has taken most of what was sent, or is gone."""

    def hold(self) -> None:
        """Read nothing until `resume`."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """Write what there is and close."""
