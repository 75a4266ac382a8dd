"""Logs of this process, used under the eyes of a history: every promise is noted and held to."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from penstock.log import Log, Logs, LogSettings, SharedLimits
from penstock.model import names
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from tests.powercut.facts import Acked, Creating, Deleting, Done, Fact, Purging, Sending
from tests.powercut.history import History
from tests.powercut.payload import payload, subject
from tests.powercut.view import tell_everything

PARTITION = PartitionId(0)


class Witness:
    """Publishes, deletes and purges; `reopen` demands that all of it is still so."""

    def __init__(self, directory: Path, settings: LogSettings, limits: SharedLimits) -> None:
        self._directory, self._settings, self._limits = directory, settings, limits
        self._history = History()
        self._numbers = count(1)
        self.logs = self._fresh()

    async def open(self) -> None:
        """Recover what is there and compare it with what was promised."""
        await self.start()
        await self.look()

    async def start(self) -> None:
        """Recover what is there."""
        self.logs = self._fresh()
        await self.logs.open()

    async def look(self) -> None:
        """Read everything and compare it with what was promised."""
        self._history.begin()
        await tell_everything(self.logs, self.tell, disk_failed=True)

    async def reopen(self) -> None:
        await self.logs.close()
        await self.open()

    def tell(self, fact: Fact) -> None:
        violations = self._history.tell(fact)
        assert not violations, "\n".join(map(str, violations))

    async def create(self, topic: str) -> Log:
        number = next(self._numbers)
        self.tell(Creating(number, f"default/default/{topic}"))
        log = await self.logs.create(names.topic(f"default/default/{topic}"))
        self.tell(Done(number))
        return log

    def log(self, topic: str) -> Log:
        log = self.logs.get(names.topic(f"default/default/{topic}"))
        assert log is not None
        return log

    async def publish(self, log: Log, size_bytes: int = 2000) -> int:
        """One message; its offset."""
        publisher = next(self._numbers)
        self.tell(Sending(publisher, 0, 1, log.topic, PARTITION))
        id_ = (publisher, 0)
        given = await log.append(Run(subject(id_), [payload(id_, size_bytes)]))
        self.tell(Acked(publisher, 0, given.first))
        return given.first

    async def publish_until_it_fails(self, log: Log, at_once: int = 20) -> Exception:
        """The error that a producer gets who does not stop; groups of several messages."""
        while True:
            tasks = [self.publish(log) for _ in range(at_once)]
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    return result

    async def delete(self, log: Log, offsets: list[int]) -> None:
        number = next(self._numbers)
        self.tell(Deleting(number, log.topic, PARTITION, offsets))
        await log.delete(PARTITION, offsets)
        self.tell(Done(number))

    async def purge(self, log: Log, start: int) -> None:
        number = next(self._numbers)
        self.tell(Purging(number, log.topic, PARTITION, start))
        await log.purge(PARTITION, Offset(start))
        self.tell(Done(number))

    def _fresh(self) -> Logs:
        return Logs(self._directory, self._settings, self._limits)
