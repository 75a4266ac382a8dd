"""Leave the processors to others, beyond what a low priority does.

The scheduler gives a process of low priority what nobody asks for at the moment. That still costs
the others: caches, memory bandwidth, and the time it takes to have a processor back.
"""

from __future__ import annotations

import time
from typing import Final

WAITED_SHARE_MAX: Final = 0.1
"""Who waited longer than this share of the work it did was not alone."""

REST_SHARE: Final = 3
"""So many times as long as the work a rest is."""


class GivingWay:
    """Rests between pieces of work, wherever others wanted the processors meanwhile; a wait for the
    disk is not told apart from that.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._begun, self._worked = time.monotonic(), time.process_time()

    def rest(self) -> None:
        """Call it when a piece of work is done; it blocks."""
        worked = time.process_time() - self._worked
        waited = time.monotonic() - self._begun - worked
        if waited > worked * WAITED_SHARE_MAX:
            time.sleep(worked * REST_SHARE)
        self._begin()
