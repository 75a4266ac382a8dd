"""The parts of a broker that delivery uses, and the way to the subscribers of a subject."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from penstock.host.clock import Clock
from penstock.metadata import Compare, Metadata, MetadataKeys, ProgressUpdater
from penstock.model.names import TopicName
from penstock.streams import Stream


class Outlet(Protocol):
    """Sends to the subscribers of subjects; implemented by a protocol's server.

    Every call is made on the event loop and returns at once, except `drained`.
    """

    def has_interest(self, subject: bytes) -> bool: ...

    def send(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> int:
        """Publish to all subscribers of `subject`; returns how many connections received it."""
        ...

    def send_rows(
        self,
        inbox: bytes,
        subjects: Sequence[bytes],
        replies: Sequence[bytes],
        headers: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> int:
        """Send a run to the subscriber of `inbox`, each message under its own subject.

        Returns how many messages were received, counted from the first: an auto-unsubscribe may
        end a run in its middle.
        """
        ...

    async def drained(self, inbox: bytes) -> None:
        """Wait until the subscribers of `inbox` have read most of their pending output."""
        ...

    def on_no_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when the last subscription of `subject` ends (UNSUB, auto-unsubscribe,
        disconnect); returns a function that cancels the call.
        """
        ...

    def on_departure(self, inbox: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when a client that subscribes to `inbox` now disconnects, whatever it
        subscribes to by then; returns a function that cancels the call.
        """
        ...

    def on_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when a client subscribes to `subject`; returns a function that cancels."""
        ...


class DeliveryLimits(NamedTuple):
    """Limits and delays of delivery."""

    settle_seconds: float = 1.0
    """The longest time that an ack without a waiting client stays in memory only."""
    retry_seconds: float = 1.0
    """The delay before a failed read of messages or of consumer records is retried."""
    steps_per_turn: int = 4
    """The most deliveries of one consumer in one turn of the event loop."""
    flow_window_bytes: int = 2 << 20
    """The flow control window of a push consumer before the client's first reply."""


class DeliveryHost(NamedTuple):
    """The parts of a broker that consumers use."""

    outlet: Outlet
    metadata: Metadata
    keys: MetadataKeys
    guard: Callable[[TopicName], Compare]
    """Returns the comparison that holds while this broker owns a topic; raises NotOwner."""
    progress: ProgressUpdater
    clock: Clock
    find_storing: Callable[[bytes], Awaitable[Stream | None]]
    """Finds, and opens if necessary, the stream that stores publishes to a subject."""
    limits: DeliveryLimits
