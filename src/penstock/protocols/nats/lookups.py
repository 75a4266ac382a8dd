"""Subscriptions of a subject, arranged for delivery, and a bounded cache of such results.

The subscriptions of a pattern are arranged once, and the results of all subjects that match only
this pattern are the same object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from penstock.protocols.nats.client import Subscription

RESULTS_MAX: Final = 8192
RESULT_SUBSCRIPTIONS_MAX: Final = 1 << 20
"""The most subscriptions in all cached results together, 8 bytes each."""
JOINED_PER_VISIT: Final = 32
"""Joining the results of patterns costs this much less than arranging their subscriptions."""


class Matched(NamedTuple):
    """The receivers of a message: all of `plain`, and one member of each queue group."""

    plain: tuple[Subscription, ...]
    queues: tuple[tuple[Subscription, ...], ...]


NOBODY: Final = Matched((), ())


class Arranged:
    """The subscriptions of one or several patterns."""

    __slots__ = ("matched", "queues", "size")

    def __init__(
        self, plain: tuple[Subscription, ...], queues: dict[bytes, tuple[Subscription, ...]]
    ) -> None:
        self.queues = queues
        self.matched = Matched(plain, tuple(queues.values())) if plain or queues else NOBODY
        self.size = 1 + len(plain) + sum(map(len, queues.values()))


def arrange(found: Collection[Subscription]) -> Arranged:
    """Arrange the subscriptions of one pattern."""
    queues: dict[bytes, list[Subscription]] = {}
    for subscription in found:
        if subscription.queue:
            queues.setdefault(subscription.queue, []).append(subscription)
    plain = tuple(subscription for subscription in found if not subscription.queue)
    return Arranged(plain, {queue: tuple(group) for queue, group in queues.items()})


def join(parts: Iterable[Arranged]) -> Arranged:
    """Join the subscriptions of several patterns; a queue group may have members in each."""
    plain: list[Subscription] = []
    queues: dict[bytes, tuple[Subscription, ...]] = {}
    for part in parts:
        plain += part.matched.plain
        for queue, group in part.queues.items():
            queues[queue] = queues[queue] + group if queue in queues else group
    return Arranged(tuple(plain), queues)


class Results(dict[bytes, Matched]):
    """A cache of results by subject, which is cleared before it becomes too large."""

    def __init__(self, subscriptions_max: int = RESULT_SUBSCRIPTIONS_MAX) -> None:
        super().__init__()
        self._subscriptions, self._subscriptions_max = 0, subscriptions_max

    def add(self, subject: bytes, found: Arranged) -> None:
        total = self._subscriptions + found.size
        if len(self) >= RESULTS_MAX or total > self._subscriptions_max:
            self.clear()
        self[subject] = found.matched
        self._subscriptions += found.size

    def clear(self) -> None:
        super().clear()
        self._subscriptions = 0
