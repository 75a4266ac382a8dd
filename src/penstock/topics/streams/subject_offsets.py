"""Which messages each subject has, for streams that keep only so many of one subject.

Those that are not durable yet are known too. Of a subject that is not remembered the others have to
be looked up; what is too much of it goes a moment later then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.log.log import Log
from penstock.log.subjects.index import Miss
from penstock.model.errors import PenstockError
from penstock.model.subject_tree import wild
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId

SUBJECTS_MAX: Final = 100_000
"""Subjects whose messages are remembered; more are looked up again."""
OFFSETS_MAX: Final = 1 << 20
"""Messages of one subject that are looked up."""


@dataclass(slots=True)
class _Known:
    """Offsets of one subject, oldest first; more may be on disk while `loading`."""

    offsets: deque[int]
    loading: bool = False


class SubjectOffsets:
    """Of one partition; `drop` is told after every look-up what was found to be too much."""

    def __init__(
        self,
        log: Log,
        partition: PartitionId,
        start: Callable[[], int],
        alive: Callable[[Iterable[int]], set[int]],
        drop: Callable[[list[int]], None],
    ) -> None:
        """`start` is before everything that is there, `alive` tells which of some offsets are."""
        self._log, self._partition = log, partition
        self._start, self._alive, self._drop = start, alive, drop
        self.most: int | None = None
        """Of one subject; None is no limit."""
        self.loading = 0
        """Subjects that are being looked up."""
        self._subjects: dict[bytes, _Known] = {}
        self._loads: set[asyncio.Task[None]] = set()

    def add(self, subjects: Sequence[bytes], first: int) -> list[int]:
        """Messages of these subjects were appended; which ones are too many now."""
        gone: list[int] = []
        start, most = self._start(), OFFSETS_MAX if self.most is None else self.most
        for offset, subject in enumerate(subjects, first):
            known = self._known(subject, start)
            known.offsets.append(offset)
            if len(known.offsets) > most and not known.loading:
                gone += self._too_many(known)
        return gone

    def count(self, subject: bytes) -> int | None:
        """None when that has to be looked up first."""
        known = self._known(subject, self._start())
        return None if known.loading else len(known.offsets)

    def dropped(self, offsets: Iterable[int], subject: bytes | None) -> None:
        """These are gone, all of one subject if that is told."""
        gone, told = set(offsets), self._subjects.get(subject or b"")
        for known in self._subjects.values() if subject is None else filter(None, [told]):
            if not gone.isdisjoint(known.offsets):
                known.offsets = deque(offset for offset in known.offsets if offset not in gone)

    def forget(self) -> None:
        """Look up everything again."""
        self._subjects = {}

    def load(self, subject: bytes) -> None:
        """Look up all messages of a subject, then drop what is too much."""
        known = self._subjects.setdefault(subject, _Known(deque()))
        if not known.loading:
            known.loading = True
            self.loading += 1
            task = asyncio.get_running_loop().create_task(self._load(subject, known))
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)

    async def loaded(self) -> None:
        """Wait until nothing has to be looked up any more."""
        while self._loads:
            await asyncio.wait(self._loads)

    def _known(self, subject: bytes, start: int) -> _Known:
        known = self._subjects.get(subject)
        if known is not None:
            while known.offsets and known.offsets[0] < start:
                known.offsets.popleft()
            return known
        if len(self._subjects) >= SUBJECTS_MAX:
            self._forget_durable()
        known = self._subjects[subject] = _Known(deque())
        last = self._log.index.peek_last(self._partition, subject)
        if last is None:
            return known
        if self.most == 1 and not isinstance(last, Miss):
            known.offsets.extend(self._alive([last]))
        elif not wild(subject):
            # As a filter, one with wildcards would find the messages of others.
            self.load(subject)
        return known

    async def _load(self, subject: bytes, known: _Known) -> None:
        try:
            chosen = Filter.parse(subject)
            found = await self._log.index.matching(self._partition, chosen, Offset(0), OFFSETS_MAX)
        except PenstockError:
            self._subjects.pop(subject, None)
            found = []
        self.loading -= 1
        gone: list[int] = []
        if self._subjects.get(subject) is known:
            known.offsets = deque(sorted(self._alive({*found, *known.offsets})))
            known.loading = False
            gone = self._too_many(known)
        self._drop(gone)

    def _too_many(self, known: _Known) -> list[int]:
        excess = 0 if self.most is None else len(known.offsets) - self.most
        return [known.offsets.popleft() for _ in range(excess)]

    def _forget_durable(self) -> None:
        """All but those of which something is under way, which could not be looked up."""
        durable = self._log.next_offset(self._partition)
        self._subjects = {
            subject: known
            for subject, known in self._subjects.items()
            if known.loading or (known.offsets and known.offsets[-1] >= durable)
        }
