"""The offsets of each subject's messages, for streams that limit the messages per subject.

Offsets that are not durable are included. The offsets of a subject that is not cached are looked
up, and its excess is deleted a moment later. `PendingSubjects` holds subjects of messages that are
not durable, which the subject index cannot find yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.host.tasks import Tasks
from penstock.log import NotInMemory
from penstock.model.errors import PenstockError
from penstock.model.subjects import Filter
from penstock.topics import OpenPartition

SUBJECTS_MAX: Final = 100_000
"""Limit of cached subjects; others are looked up again."""
OFFSETS_MAX: Final = 1 << 20
"""Limit of one subject's messages in a look-up."""


@dataclass(slots=True)
class _Known:
    """Offsets of one subject, oldest first; incomplete while `loading`."""

    offsets: deque[int]
    loading: bool = False


class SubjectOffsets:
    """The offsets of one partition by subject; calls `drop` with the excess after every look-up."""

    def __init__(
        self,
        partition: OpenPartition,
        start: Callable[[], int],
        alive: Callable[[Iterable[int]], set[int]],
        drop: Callable[[list[int]], None],
    ) -> None:
        """`start` returns the log start offset, `alive` which of some offsets have a message."""
        self._partition = partition
        self._start, self._alive, self._drop = start, alive, drop
        self.most: int | None = None
        """Limit of one subject's messages; None is no limit."""
        self.loading = 0
        """Number of subjects that are being looked up."""
        self._subjects: dict[bytes, _Known] = {}
        self._loads = Tasks()

    def add(self, subjects: Sequence[bytes], first: int) -> list[int]:
        """Add messages that were appended; returns the offsets beyond the limit."""
        excess: list[int] = []
        start, most = self._start(), OFFSETS_MAX if self.most is None else self.most
        for offset, subject in enumerate(subjects, first):
            known = self._known(subject, start)
            known.offsets.append(offset)
            if len(known.offsets) > most and not known.loading:
                excess += self._excess(known)
        return excess

    def count(self, subject: bytes) -> int | None:
        """Number of messages of a subject; None if a look-up is needed."""
        known = self._known(subject, self._start())
        return None if known.loading else len(known.offsets)

    def note_deleted(self, offsets: Iterable[int], subject: bytes | None) -> None:
        """Remove deleted offsets, all of `subject` if given."""
        deleted, of_subject = set(offsets), self._subjects.get(subject or b"")
        for known in self._subjects.values() if subject is None else filter(None, [of_subject]):
            if not deleted.isdisjoint(known.offsets):
                known.offsets = deque(offset for offset in known.offsets if offset not in deleted)

    def forget(self) -> None:
        """Empty the cache."""
        self._subjects = {}

    def load(self, subject: bytes) -> None:
        """Look up all messages of a subject, then delete the excess."""
        known = self._subjects.setdefault(subject, _Known(deque()))
        if not known.loading:
            known.loading = True
            self.loading += 1
            self._loads.start(self._load(subject, known))

    async def looked_up(self) -> None:
        """Wait until no look-up is running."""
        await self._loads.drain()

    def _known(self, subject: bytes, start: int) -> _Known:
        known = self._subjects.get(subject)
        if known is not None:
            while known.offsets and known.offsets[0] < start:
                known.offsets.popleft()
            return known
        if len(self._subjects) >= SUBJECTS_MAX:
            self._forget_durable()
        known = self._subjects[subject] = _Known(deque())
        last = self._partition.subjects.cached_last(subject)
        if last is None:
            return known
        if self.most == 1 and not isinstance(last, NotInMemory):
            known.offsets.extend(self._alive([last]))
        else:
            self.load(subject)
        return known

    async def _load(self, subject: bytes, known: _Known) -> None:
        try:
            chosen = Filter.exactly(subject)
            found = await self._partition.subjects.matching(chosen, 0, OFFSETS_MAX)
        except PenstockError:
            self._subjects.pop(subject, None)
            found = []
        self.loading -= 1
        excess: list[int] = []
        if self._subjects.get(subject) is known:
            known.offsets = deque(sorted(self._alive({*found, *known.offsets})))
            known.loading = False
            excess = self._excess(known)
        self._drop(excess)

    def _excess(self, known: _Known) -> list[int]:
        """Remove and return the oldest offsets beyond the limit."""
        count = 0 if self.most is None else len(known.offsets) - self.most
        return [known.offsets.popleft() for _ in range(count)]

    def _forget_durable(self) -> None:
        """Remove all subjects except those with messages that are not durable, which no look-up
        would find.
        """
        durable = self._partition.next_offset
        self._subjects = {
            subject: known
            for subject, known in self._subjects.items()
            if known.loading or (known.offsets and known.offsets[-1] >= durable)
        }


PENDING_SUBJECTS_MAX: Final = 10_000
"""Limit of remembered subjects, after which those are removed whose messages are durable."""


class PendingSubjects:
    """The subjects of one partition with messages that are not durable."""

    def __init__(self, partition: OpenPartition) -> None:
        self._partition = partition
        self._since = partition.appended_offset
        self._stops: dict[bytes, int] = {}
        """An offset after the last message of each subject."""

    def add(self, subjects: Iterable[bytes], stop: int) -> None:
        """Add the subjects of a run that was appended; `stop` is the offset after it."""
        self._stops.update(dict.fromkeys(subjects, stop))
        if len(self._stops) > PENDING_SUBJECTS_MAX:
            durable = self._partition.next_offset
            self._stops = {name: end for name, end in self._stops.items() if end > durable}

    def has(self, subject: bytes) -> bool:
        """Whether a message of this subject may not be durable yet."""
        durable = self._partition.next_offset
        return durable < self._since or self._stops.get(subject, 0) > durable
