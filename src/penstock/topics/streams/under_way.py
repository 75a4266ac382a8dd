"""Subjects of messages that are not durable yet: those the subject index cannot find."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.log.log import Log
from penstock.model.units import PartitionId

SUBJECTS_MAX: Final = 10_000
"""Subjects that are remembered before those are forgotten whose messages are durable by now."""


class UnderWay:
    """Of one partition, from now on."""

    def __init__(self, log: Log, partition: PartitionId) -> None:
        self._log, self._partition = log, partition
        self._since = log.writer.next_offset(partition)
        self._stops: dict[bytes, int] = {}
        """The offset behind the last message of each subject, or further."""

    def add(self, subjects: Iterable[bytes], stop: int) -> None:
        """A run of these subjects was taken; `stop` is the offset behind it."""
        self._stops.update(dict.fromkeys(subjects, stop))
        if len(self._stops) > SUBJECTS_MAX:
            durable = self._log.next_offset(self._partition)
            self._stops = {name: end for name, end in self._stops.items() if end > durable}

    def has(self, subject: bytes) -> bool:
        """Whether there may be a message of this subject that is not durable."""
        durable = self._log.next_offset(self._partition)
        return durable < self._since or self._stops.get(subject, 0) > durable
