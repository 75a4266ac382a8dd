"""The messages of one consumer that clients have and have not settled: acks and redelivery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.delivery.consumers.advisories import AckSample, samples_of
from penstock.delivery.consumers.consumer_rules import REDELIVER_ON_DISCONNECT
from penstock.delivery.consumers.host import Outlet
from penstock.delivery.consumers.sending import InboxDeliveries
from penstock.host.clock import Clock
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.rules import AckPolicy
from penstock.wire.jetstream.consumer_config import ConsumerConfig


@dataclass(slots=True)
class Activity:
    """The times of a consumer's last events; 0 means never."""

    active_ns: int
    """When a client was last active, on the monotonic clock."""
    delivered_us: int = 0
    acked_us: int = 0
    pinned_us: int = 0
    """When the current client was pinned."""


class InFlightEvents(NamedTuple):
    """The functions that `InFlight` calls."""

    changed: Callable[[], None]
    """The ledger has changes to write."""
    settled: Callable[[Sequence[int]], None]
    """These messages are settled."""
    exhausted: Callable[[Iterable[int]], None]
    """These messages exceeded max_deliver and are not delivered again."""
    sampled: Callable[[Iterable[AckSample]], None]
    """Ack times to publish."""
    deliverable: Callable[[], None]
    """There may be messages to deliver."""


class InFlight:
    """Records the deliveries of one consumer in its ledger, and applies acks to them."""

    def __init__(
        self,
        ledger: ConsumerLedger,
        config: ConsumerConfig,
        outlet: Outlet,
        clock: Clock,
        activity: Activity,
        events: InFlightEvents,
    ) -> None:
        self._ledger, self._outlet, self._clock = ledger, outlet, clock
        self._activity, self._events = activity, events
        self.configure(config)

    def configure(self, config: ConsumerConfig) -> None:
        """Apply the ack sampling and the redelivery on disconnect of a configuration."""
        self._samples = samples_of(config.sample_freq)
        on_disconnect = config.metadata.get(REDELIVER_ON_DISCONNECT) == "true"
        self._inboxes = InboxDeliveries(self._outlet, self._abandon) if on_disconnect else None

    # -- deliveries

    def assign(self, inbox: bytes, seqs: Sequence[int], positions: Sequence[int]) -> None:
        """Record which of the messages `seqs` are about to be sent to an inbox."""
        if self._inboxes is not None:
            self._inboxes.assign(inbox, [seqs[position] for position in positions])

    def deliver(self, seqs: Sequence[int], undelivered: Sequence[int]) -> None:
        """Record the first delivery of `seqs`; nobody received those in `undelivered`."""
        now_ns = self._record_delivery(seqs)
        self._ledger.record_delivery(seqs, now_ns)
        self._ledger.undo_delivery(undelivered)
        if self._ledger.rules.ack_policy is AckPolicy.NONE:
            self._events.settled(seqs)
        self._events.changed()

    def redeliver(self, seqs: Sequence[int]) -> None:
        """Record another delivery of `seqs`."""
        now_ns = self._record_delivery(seqs)
        self._ledger.record_redelivery(seqs, now_ns)
        self._events.changed()

    def give_up(self, exhausted: list[int]) -> None:
        """Report messages that exceeded max_deliver."""
        if self._inboxes is not None:
            self._inboxes.remove(exhausted)
        if exhausted:
            self._events.exhausted(exhausted)
            self._events.changed()

    # -- acks

    def ack(self, seqs: Sequence[int]) -> None:
        """Settle messages that a client acked."""
        settled = self._ledger.ack(seqs)
        self._activity.active_ns = now_ns = self._clock.monotonic_ns()
        if self._samples is not None:
            self._events.sampled(self._samples.acked(settled, now_ns))
        self._settle(settled)

    def terminate(self, seqs: Sequence[int]) -> list[int]:
        """Settle messages without redelivery; returns those that were in flight."""
        settled = self._ledger.terminate(seqs)
        self._settle(settled)
        return settled

    def settle_dead_letters(self, seqs: Sequence[int]) -> None:
        """Settle messages that were copied to the dead-letter subject."""
        self._ledger.terminate(seqs)
        self._settle(list(seqs))

    def settle_deleted(self, first_seq: int, *, stream_empty: bool) -> None:
        """Settle the messages before `first_seq`, which the stream has deleted."""
        if self._ledger.settled_stream_seq >= first_seq - 1:
            return
        if self._ledger.settle_before(first_seq, stream_empty=stream_empty):
            self._activity.acked_us = self._clock.now_us()
            self._events.changed()

    def nak(self, seq: int, delay_ns: int) -> None:
        """Queue a message for redelivery after a delay."""
        self.give_up(self._ledger.nak(seq, delay_ns, self._clock.monotonic_ns()))

    def progress(self, seqs: Iterable[int]) -> None:
        """Restart the ack wait of messages, because a client reports progress on them."""
        self._activity.active_ns = now_ns = self._clock.monotonic_ns()
        self._ledger.progress(seqs, now_ns)

    # -- details

    def _record_delivery(self, seqs: Sequence[int]) -> int:
        """Record when messages were delivered; returns that time on the monotonic clock."""
        self._activity.delivered_us = self._clock.now_us()
        self._activity.active_ns = now_ns = self._clock.monotonic_ns()
        if self._samples is not None:
            self._samples.record_delivery(seqs, self._ledger.consumer_seq + 1, now_ns)
        return now_ns

    def _settle(self, settled: list[int]) -> None:
        self._activity.acked_us = self._clock.now_us()
        if self._inboxes is not None:
            self._inboxes.remove(settled)
        if settled:
            self._events.settled(settled)
            self._events.changed()

    def _abandon(self, seqs: list[int]) -> None:
        """Redeliver the messages of a client that disconnected."""
        self.give_up(self._ledger.requeue(seqs))
        self._events.deliverable()
