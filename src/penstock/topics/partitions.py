"""The partitions of a topic: one for every value of its partition column.

The owner assigns ids from 0 on, without a gap, in transactions that compare its epoch, that the
topic's record is unchanged, and that the first new id is free. So a value that a crash or a lost
reply left behind is found again, and none gets two ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final

from penstock.log import Waiters
from penstock.metadata import (
    CHUNK_BYTES_MAX,
    OPERATIONS_MAX,
    Compare,
    CompareTarget,
    Metadata,
    MetadataKeys,
    Put,
    decode_partition,
    encode_partition,
)
from penstock.metadata.ownership import NotOwner
from penstock.model.errors import FormatError, LogClosed, PartitionInvalid
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import ONLY_PARTITION, PartitionId

PARTITIONS_MAX: Final = 20_000
"""Limit of one topic's partitions: the manifest has the offsets of every partition of an object."""

VALUE_BYTES_MAX: Final = 64 << 10
"""Limit of a partition value's record."""


class Partitions:
    """The partitions of one topic that this broker owns, which the `guards` compare."""

    def __init__(
        self,
        metadata: Metadata,
        keys: MetadataKeys,
        topic: TopicName,
        guards: Sequence[Compare],
        partitioned: bool,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self._metadata, self._keys, self._topic = metadata, keys, topic
        self._guards, self._partitioned = guards, partitioned
        self._partitions_max = partitions_max
        self._values: list[PartitionValue] = []
        self._ids: dict[PartitionValue, PartitionId] = {}
        self._waiters = Waiters()
        self._allocating = asyncio.Lock()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._values) if self._partitioned else 1

    def __iter__(self) -> Iterator[PartitionValue | None]:
        """The values in the order of their ids."""
        return iter(self._values if self._partitioned else [None])

    def find(self, value: PartitionValue | None) -> PartitionId | None:
        """The partition of a value; None if there is none yet."""
        return ONLY_PARTITION if value is None else self._ids.get(value)

    def slice(self, first: int, count: int) -> list[PartitionValue | None]:
        """The values of a range of ids."""
        return list(islice(self, first, first + count))

    def arrival(self, value: PartitionValue | None) -> AbstractContextManager[asyncio.Future[None]]:
        """A future that completes when the value gets a partition, or the topic closes.

        Register, check again, then wait.
        """
        # Two values may share a hash; a reader that is woken checks again anyway.
        return self._waiters.arrival(hash(value))

    async def load(self) -> None:
        """Load the recorded partitions that are not known yet; raises FormatError."""
        more = self._partitioned
        while more:
            last = self._keys.partition(self._topic, len(self._values) - 1) if self._values else ""
            page = await self._metadata.range(self._keys.partitions(self._topic), last)
            for entry in page.entries:
                if entry.key != self._keys.partition(self._topic, len(self._values)):
                    raise FormatError(f"the partition before {entry.key} has no record")
                self._add([decode_partition(entry)])
            more = page.more

    async def ensure(self, values: Sequence[PartitionValue | None]) -> list[PartitionId]:
        """The partitions of these values; new ones are durable on return.

        Raises PartitionInvalid, NotOwner, LogClosed, MetadataUnavailable; some of the new ones may
        exist then.
        """
        if any(self.find(value) is None for value in values):
            async with self._allocating:
                await self._create(values)
        return [found for value in values if (found := self.find(value)) is not None]

    def stop(self) -> None:
        """Wake all readers that wait, because the topic is no longer served here."""
        self._stopped = True
        self._waiters.wake_all()

    async def _create(self, values: Iterable[PartitionValue | None]) -> None:
        encoded = {
            value: _record(value)
            for value in dict.fromkeys(values)
            if value is not None and value not in self._ids
        }
        if len(self._values) + len(encoded) > self._partitions_max:
            raise PartitionInvalid(
                f"topic {self._topic.full} would have more than {self._partitions_max} partitions, "
                "the limit PARTITIONS_MAX; partition it by a column of fewer values"
            )
        while True:
            if self._stopped:
                raise LogClosed(str(self._topic))
            new = {v: record for v, record in encoded.items() if v not in self._ids}
            if not new:
                return
            await self._allocate(_first_chunk(new))

    async def _allocate(self, new: dict[PartitionValue, bytes]) -> None:
        """Assign ids to these values in one transaction; assigns none if it finds earlier ones."""
        known = len(self._values)
        keys = [self._keys.partition(self._topic, known + index) for index in range(len(new))]
        puts = [Put(key, record) for key, record in zip(keys, new.values(), strict=True)]
        outcome = await self._metadata.transaction(
            [*self._guards, Compare(keys[0], CompareTarget.VERSION, 0)], puts
        )
        if outcome.succeeded:
            self._add(new)
            return
        await self.load()
        if len(self._values) == known and not self._stopped:
            raise NotOwner(self._topic)

    def _add(self, values: Iterable[PartitionValue]) -> None:
        for value in values:
            self._ids[value] = PartitionId(len(self._values))
            self._values.append(value)
            self._waiters.wake(hash(value))


def _record(value: PartitionValue) -> bytes:
    record = encode_partition(value)
    if len(record) > VALUE_BYTES_MAX:
        raise PartitionInvalid(
            f"a partition value of {len(record)} bytes is too large, the limit VALUE_BYTES_MAX is "
            f"{VALUE_BYTES_MAX}"
        )
    return record


def _first_chunk(new: dict[PartitionValue, bytes]) -> dict[PartitionValue, bytes]:
    """The values that fit into one transaction."""
    chunk: dict[PartitionValue, bytes] = {}
    size = 0
    for value, record in new.items():
        size += len(record)
        if len(chunk) == OPERATIONS_MAX or size > CHUNK_BYTES_MAX:
            break
        chunk[value] = record
    return chunk
