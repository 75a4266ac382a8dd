"""One life of a child process, followed from its orders to its last word."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tests.powercut.broker import Broker
from tests.powercut.facts import Cut, Cutting, Recovered, Writing
from tests.powercut.history import History
from tests.powercut.orders import Orders
from tests.powercut.partition import Violation

RECOVERY_SECONDS: Final = 120
"""A recovery that takes longer is taken for one that never ends."""


class Watch:
    """Gives the child its orders, all it tells to the history, what that finds to `violations`."""

    def __init__(
        self, broker: Broker, history: History, orders: Orders, violations: list[Violation]
    ) -> None:
        self._broker = broker
        self._history = history
        self.recovered = False
        self.writing = False
        self.cutting = False
        self.cut = False
        self._violations = violations
        history.begin()
        broker.start(orders)

    def await_recovery(self) -> None:
        """Until everything that is there was told, unless the process or the power ends first."""
        self.listen(RECOVERY_SECONDS, lambda: self.recovered)

    def await_writing(self) -> None:
        """Until every partition took a message, unless the process or the power ends first."""
        self.listen(RECOVERY_SECONDS, lambda: self.writing)

    def listen(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Until the time is over, it is enough, the power is cut, or the child has said all."""
        end = time.monotonic() + seconds
        while not (self.cut or self._broker.silent or enough()):
            left = end - time.monotonic()
            if left <= 0:
                break
            self._hear(left)

    def drain(self) -> None:
        """Until the process has ended."""
        while not self._broker.silent:
            self._hear(RECOVERY_SECONDS)

    def _hear(self, wait_seconds: float) -> None:
        for fact in self._broker.receive(wait_seconds):
            self._violations += self._history.tell(fact)
            self.recovered = self.recovered or (isinstance(fact, Recovered) and not self.cut)
            self.writing = self.writing or isinstance(fact, Writing)
            self.cutting = self.cutting or isinstance(fact, Cutting)
            self.cut = self.cut or isinstance(fact, Cut)
