"""Which positions of subscriptions are to be saved, and when: decisions only, no clock, no store.

Saved are all that moved, every interval, and one that moved by the delta at once. When the store
does not answer, everything waits, for a pause that doubles up to the interval.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.model.names import TopicName
from penstock.model.units import Nanoseconds, Offset

PAUSE_NS: Final = 100_000_000

_SECOND_NS: Final = 1_000_000_000


class Subscription(NamedTuple):
    """A subscription of a topic."""

    topic: TopicName
    name: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"


class Positions:
    """The positions of any number of subscriptions; they only go forward."""

    def __init__(self, interval_seconds: float, delta: int, now_ns: Nanoseconds) -> None:
        self._interval_ns = int(interval_seconds * _SECOND_NS)
        self._delta = delta
        self._recorded: dict[Subscription, Offset] = {}
        self._saved: dict[Subscription, Offset] = {}
        self._far: set[Subscription] = set()
        self._interval_ends_ns = now_ns + self._interval_ns
        self._pause_ns = self._pause_ends_ns = 0

    def begin(self, subscription: Subscription, saved: Offset) -> None:
        """Take up a subscription whose saved position is known."""
        self._recorded[subscription] = self._saved[subscription] = saved

    def forget(self, subscription: Subscription) -> None:
        self._recorded.pop(subscription, None)
        self._saved.pop(subscription, None)
        self._far.discard(subscription)

    def record(self, subscription: Subscription, offset: Offset) -> bool:
        """Note a position; True when it should not wait for the interval.

        One that is behind, or of a subscription that was not begun, changes nothing.
        """
        before = self._recorded.get(subscription)
        if before is None or offset <= before:
            return False
        self._recorded[subscription] = offset
        if offset - self._saved[subscription] < self._delta or subscription in self._far:
            return False
        self._far.add(subscription)
        return True

    def recorded(self, subscription: Subscription) -> Offset:
        return self._recorded[subscription]

    def saved(self, subscription: Subscription) -> Offset | None:
        """The position the store is known to have."""
        return self._saved.get(subscription)

    def unsaved(self, topic: TopicName | None = None) -> dict[Subscription, Offset]:
        """All that moved since they were saved, of one topic or of all."""
        return {
            subscription: offset
            for subscription, offset in self._recorded.items()
            if offset > self._saved[subscription] and topic in (None, subscription.topic)
        }

    def due(self, now_ns: Nanoseconds) -> dict[Subscription, Offset]:
        """What to save now."""
        if now_ns < self._pause_ends_ns:
            return {}
        if now_ns >= self._interval_ends_ns:
            self._interval_ends_ns = now_ns + self._interval_ns
            return self.unsaved()
        return {subscription: self._recorded[subscription] for subscription in self._far}

    def wait_seconds(self, now_ns: Nanoseconds) -> float:
        """When to ask again what is due, unless a record says at once."""
        soonest_ns = now_ns if self._far else self._interval_ends_ns
        return max(0, max(soonest_ns, self._pause_ends_ns) - now_ns) / _SECOND_NS

    def was_saved(self, subscription: Subscription, offset: Offset) -> None:
        """The store has this position, or one that is further on."""
        self._pause_ns = self._pause_ends_ns = 0
        if subscription not in self._recorded:
            return
        saved = self._saved[subscription] = max(offset, self._saved[subscription])
        self._recorded[subscription] = max(saved, self._recorded[subscription])
        if self._recorded[subscription] - saved < self._delta:
            self._far.discard(subscription)

    def failed(self, now_ns: Nanoseconds) -> None:
        """The store did not answer."""
        if now_ns >= self._pause_ends_ns:
            self._pause_ns = min(max(PAUSE_NS, 2 * self._pause_ns), self._interval_ns)
            self._pause_ends_ns = now_ns + self._pause_ns
            # What is unsaved is due again when the pause is over.
            self._interval_ends_ns = min(self._interval_ends_ns, self._pause_ends_ns)
