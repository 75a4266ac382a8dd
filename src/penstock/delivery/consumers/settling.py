"""What the consumers of one stream settled, on its way into the log.

An ack that nobody waits for is written within an interval, together with whatever else changed by
then. Whoever waits has it written in this turn of the loop: one frame for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from penstock.ledger.settlement import KIND, Journal, encode
from penstock.log.log import Log
from penstock.model.durability import Durability
from penstock.model.errors import PenstockError

CHANGES_MAX: Final = 256
"""So many changes follow a whole settlement; then a new one replaces them."""

Done = Callable[[bool], None]
"""Called with whether it is durable."""

_events = structlog.get_logger(__name__)


class Settling:
    """Writes journals of one log."""

    def __init__(self, log: Log, interval_seconds: float) -> None:
        self._log, self._interval = log, interval_seconds
        self.kept = log.durability is not Durability.MEMORY
        """Whether anything is written at all."""
        self._floors: dict[Journal, int] = {}
        """Behind which frame the last whole settlement of each is."""
        self._changes: dict[Journal, int] = {}
        self._dirty: dict[Journal, None] = {}
        self._waiting: list[Done] = []
        self._timer: asyncio.Handle | None = None
        self._soon = False
        self._last: asyncio.Future[None] | None = None

    def restored(self, journal: Journal, frame: int) -> None:
        """A consumer goes on; its last whole settlement is in this frame."""
        self._floors[journal] = frame
        journal.goes_on()

    def forget(self, journal: Journal) -> None:
        """The consumer is gone."""
        for part in (self._floors, self._changes, self._dirty):
            part.pop(journal, None)
        self._let_go()

    def changed(self, journal: Journal) -> None:
        """Write this within the interval."""
        if not self.kept:
            journal.discard()
        elif journal not in self._dirty:
            self._dirty[journal] = None
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._interval, self.flush)

    def now(self, journal: Journal, done: Done) -> None:
        """Write this in this turn, and say when it is durable."""
        if not self.kept:
            done(True)
            return
        self._dirty[journal] = None
        self._waiting.append(done)
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write everything that changed, now."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._soon = None, False
        dirty, self._dirty = self._dirty, {}
        waiting, self._waiting = self._waiting, []
        frame = self._log.writer.durable_number
        for journal in self._behind():
            journal.begin()
            dirty[journal] = None
        taken = {journal: change for journal in dirty if (change := journal.take()) is not None}
        if not taken:
            self._when_written(waiting)
            return
        try:
            future = self._log.settle(encode(list(taken.values())), len(taken))
        except PenstockError as error:
            self._failed(list(taken), waiting, error)
            return
        self._last = future
        for journal, change in taken.items():
            self._changes[journal] = 0 if change.whole else self._changes.get(journal, 0) + 1
        whole = [journal for journal, change in taken.items() if change.whole]
        future.add_done_callback(partial(self._written, list(taken), whole, frame, waiting))

    async def close(self) -> None:
        """Write what there is and wait for it."""
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    def rotated(self) -> bool:
        """Whether settlements lie in files that only they keep."""
        active = self._log.writer.active
        if active is None or not self._floors:
            return False
        return min(self._floors.values()) < active.file.header.first_frame

    def _behind(self) -> list[Journal]:
        """Those whose whole settlement is to be written again, so that old files may go."""
        active = self._log.writer.active
        first = 0 if active is None else active.file.header.first_frame
        old = [journal for journal, frame in self._floors.items() if frame < first]
        return old + [item for item, count in self._changes.items() if count >= CHANGES_MAX]

    def _when_written(self, waiting: list[Done]) -> None:
        """There is nothing new; what was written before may still be on its way."""
        last = self._last
        if last is None or last.done():
            for done in waiting:
                done(True)
        elif waiting:
            last.add_done_callback(partial(_tell, waiting))

    def _written(
        self,
        journals: list[Journal],
        whole: list[Journal],
        frame: int,
        waiting: list[Done],
        future: asyncio.Future[None],
    ) -> None:
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            self._failed(journals, waiting, error)
            return
        for journal in whole:
            self._floors[journal] = frame
        if whole:
            self._let_go()
        for done in waiting:
            done(True)

    def _failed(
        self, journals: list[Journal], waiting: list[Done], error: BaseException | None
    ) -> None:
        _events.warning("settlements_not_written", topic=self._log.topic, reason=str(error))
        for journal in journals:
            journal.begin()
            if not self._log.closed:
                self.changed(journal)
        for done in waiting:
            done(False)

    def _let_go(self) -> None:
        """Tell the log from where on settlements are needed."""
        if self.kept and not self._log.closed:
            self._log.settlements.keep(KIND, min(self._floors.values(), default=None))


def _tell(waiting: list[Done], future: asyncio.Future[None]) -> None:
    durable = not future.cancelled() and future.exception() is None
    for done in waiting:
        done(durable)
