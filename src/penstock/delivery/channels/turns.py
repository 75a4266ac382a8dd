"""The order in which consumers are delivered to.

Consumers take turns, one job each. The last quarter of the workers is for consumers that have no
call under way: receivers that do not answer occupy the other workers until their calls time out,
and must not delay deliveries to everybody else.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.delivery.channels.target import Target

RESERVED_PART: Final = 4
"""One of so many workers is reserved for consumers without a call under way."""


class Turns:
    """Consumers that wait for one of `workers`."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._shared = workers - workers // RESERVED_PART
        """Workers that a consumer may occupy with more than one call."""
        self._idle: OrderedDict[Target, None] = OrderedDict()
        self._busy: OrderedDict[Target, None] = OrderedDict()

    def add(self, target: Target) -> None:
        """Put a consumer at the end of the line."""
        (self._busy if target.running else self._idle)[target] = None

    def ended(self, target: Target) -> None:
        """A call to this consumer, which may be waiting, is over."""
        if not target.running and target in self._busy:
            del self._busy[target]
            self._idle[target] = None

    def take(self, running: int) -> Target | None:
        """Remove and return the next consumer; None if none may begin a call now.

        `running` is the number of workers that are occupied.
        """
        if self._idle and running < self._workers:
            return self._idle.popitem(last=False)[0]
        if self._busy and running < self._shared:
            return self._busy.popitem(last=False)[0]
        return None
