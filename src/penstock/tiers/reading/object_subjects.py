"""Reads the subjects of messages that are in objects only, for the subject index."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import structlog

from penstock.log import Log, Recalled
from penstock.model.names import TopicName
from penstock.model.units import Offset, PartitionId
from penstock.objects import ObjectMissing
from penstock.tiers.manifest.manifest import Manifest
from penstock.tiers.reading.object_reader import ObjectReader, ObjectRowsDamaged

ROWS_AT_ONCE: Final = 1 << 17
_NO_OFFSETS: Final = np.empty(0, np.int64)
_events = structlog.get_logger(__name__)


class ObjectSubjects:
    """Reads the subjects of one topic's objects."""

    def __init__(
        self, topic: TopicName, log: Log, manifest: Manifest, objects: ObjectReader
    ) -> None:
        self._topic, self._log, self._manifest, self._objects = topic, log, manifest, objects

    def first_sequence(self) -> int:
        return self._log.files.all()[0].sequence

    def partitions(self) -> list[PartitionId]:
        return self._log.partitions()

    def start(self, partition: PartitionId) -> Offset:
        return self._log.files.start(partition)

    async def subjects(self, partition: int, first: int, stop: int) -> Recalled:
        """The next subjects from `first` on, without those of damaged or missing objects."""
        index = self._manifest.index
        located = index.find(partition, first)
        if located is None:
            return _no_subjects(min(index.next_first(partition, first) or stop, stop))
        entry, span = located
        if entry.schema_crc32c:
            return self._topic_subject(first, min(span.next, stop))
        try:
            offsets, subjects, next_ = await self._objects.subjects(entry, span, Offset(first))
        except (ObjectRowsDamaged, ObjectMissing) as error:
            if self._manifest.index.find(partition, first) != located:
                # A merge has replaced the object; the caller reads again from here.
                return _no_subjects(first)
            _events.error("subjects_not_recalled", topic=str(self._topic), reason=str(error))
            return _no_subjects(min(span.next, stop))
        if entry.linked and not len(offsets):
            return self._topic_subject(first, min(span.next, stop))
        within = int(np.searchsorted(offsets, stop))
        return Recalled(min(next_, stop), offsets[:within], subjects.slice(0, within))

    def _topic_subject(self, first: int, stop: int) -> Recalled:
        """The next rows, all with the subject of the topic."""
        next_ = min(stop, first + ROWS_AT_ONCE)
        return Recalled(next_, np.arange(first, next_), self._topic.topic.encode())


def _no_subjects(next_: int) -> Recalled:
    return Recalled(next_, _NO_OFFSETS, pa.array([], pa.binary()))
