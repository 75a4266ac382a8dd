"""The state of a log: where partitions start and end, deleted offsets, linked transactions.

The state changes by frames only, in their order, so that recovery rebuilds it exactly.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from pyroaring import BitMap64

from penstock.formats import batches, bodies
from penstock.formats.bodies import (
    LINK_RANGES_MAX,
    ONCE,
    ONCE_SECONDS,
    DeleteBody,
    EndsBody,
    LinkBody,
    StartBody,
    Transaction,
    checkpoint_ends,
)
from penstock.formats.frames import Buffer, FrameHeader, Kind
from penstock.model.resources import Durability
from penstock.model.units import Offset, PartitionId, PartitionRange


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets that were used and are not in the files."""

    partition: PartitionId
    first: Offset
    next: Offset


class LogState:
    """The committed state of one log; a partition appears with its first message."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.last_timestamp = 0
        self.lineage = ""
        self.durability = Durability.FSYNC
        self.deletions = 0
        """How many deletions were applied; changes with the set of deleted offsets."""
        self.nexts: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._deleted: dict[int, BitMap64] = {}
        self.transactions: dict[str, Transaction] = {}
        """The last link of each application, in the order of links."""
        self.linked_frame = 0
        """The frame number after the last link."""
        self.settle_floor: int | None = None
        """First frame whose settlements may still be needed."""
        self.floor = 0
        """The first offset of partitions that do not exist yet."""
        self._touched: set[int] = set()

    def next(self, partition: PartitionId) -> Offset:
        """The offset of the next message of the partition."""
        return Offset(self.nexts.get(partition, self.floor))

    def start(self, partition: PartitionId) -> Offset:
        """The first offset that is not purged."""
        if partition not in self.nexts:
            return Offset(self.floor)
        return Offset(self._starts.get(partition, 0))

    def starts(self) -> dict[int, int]:
        """The first offsets of partitions that do not start at 0."""
        return dict(self._starts)

    def bitmap(self, partition: PartitionId) -> BitMap64 | None:
        """The deleted offsets from the start on; None if there are none."""
        return self._deleted.get(partition)

    def bitmaps(self) -> dict[int, BitMap64]:
        """Copies of all bitmaps of deleted offsets, by partition."""
        return {partition: BitMap64(bitmap) for partition, bitmap in self._deleted.items()}

    def next_live(self, partition: PartitionId, offset: Offset) -> Offset:
        """The first offset from `offset` on that is not deleted."""
        deleted = self._deleted.get(partition)
        if deleted is None or offset not in deleted:
            return offset
        step = 1
        while deleted.range_cardinality(offset, offset + step) == step:
            step *= 2
        low, high = offset + step // 2, offset + step
        while low < high:
            middle = (low + high) // 2
            if deleted.range_cardinality(offset, middle + 1) == middle + 1 - offset:
                low = middle + 1
            else:
                high = middle
        return Offset(low)

    def gap_is_recorded(self, gap: PartitionRange) -> bool:
        """Whether all these offsets were deleted or skipped on purpose."""
        partition = PartitionId(gap.partition)
        return all_deleted(gap, self.start(partition), self._deleted.get(partition))

    def deleted(self) -> dict[int, bytes]:
        """The bitmaps of deleted offsets, serialised, by partition."""
        for bitmap in self._deleted.values():
            bitmap.run_optimize()
        return {p: bitmap.serialize() for p, bitmap in self._deleted.items()}

    def live_count(self, partition: PartitionId) -> int:
        """How many messages of the partition can be read."""
        deleted = self._deleted.get(partition)
        span = self.next(partition) - self.start(partition)
        return span if deleted is None else span - len(deleted)

    def apply(self, header: FrameHeader, body: Buffer, last_timestamp: int | None = None) -> None:
        """Apply a committed frame; for a batch, its `last_timestamp` may replace the body."""
        if header.kind == Kind.BATCH:
            self._begin(header.partition)
            self.nexts[header.partition] = header.next_offset
            self._touched.add(header.partition)
        elif header.kind == Kind.LINK:
            link = bodies.decode(LinkBody, body)
            ranges = {p.partition: (p.first_offset, p.first_offset + p.rows) for p in link.parts}
            for partition, (_, next_) in ranges.items():
                self._begin(partition)
                self.nexts[partition] = next_
            self._remember(link.app, Transaction(link.epoch, ranges, header.first_timestamp))
            self._touched.update(ranges)
            self.linked_frame = header.number + 1
        elif header.kind == Kind.DELETE:
            self._delete(header.partition, header.first_offset, bodies.decode(DeleteBody, body))
            self._touched.add(header.partition)
        elif header.kind == Kind.SETTLE and self.settle_floor is None:
            self.settle_floor = header.number
        else:
            for partition, next_ in checkpoint_ends(header, body).items():
                self.nexts[partition] = max(next_, self.nexts.get(partition, 0))
        if last_timestamp is None:
            last_timestamp = batches.last_timestamp(header, body)
        self.last_timestamp = max(self.last_timestamp, last_timestamp)

    def reach(self, partition: int, next_: int) -> None:
        """Note that all offsets before `next_` were used, whether or not the messages exist."""
        self._begin(partition)
        self.nexts[partition] = max(next_, self.nexts.get(partition, 0))

    def skip(self, partition: int, next_: int) -> None:
        """Continue the partition at `next_`, if that is ahead; the offsets before are a gap."""
        first = self.next(PartitionId(partition))
        gap = BitMap64()
        gap.add_range(first, max(first, next_))
        self._begin(partition)
        self._delete(partition, next_, DeleteBody(0, gap.serialize(), ""))

    def restore(self, partition: PartitionId, start: Offset, deleted: bytes, next_: Offset) -> None:
        """Set a partition to what is known of it from elsewhere."""
        self._delete(partition, next_, DeleteBody(start, deleted, ""))

    def to_start(self) -> StartBody:
        """The state as the first frame of a file stores it."""
        partitions = sorted(self.nexts)
        return StartBody(
            self.topic,
            self.last_timestamp,
            array("I", partitions).tobytes(),
            array("q", (self._starts.get(p, 0) for p in partitions)).tobytes(),
            array("q", (self.nexts[p] for p in partitions)).tobytes(),
            self.deleted(),
            self.transactions,
            self.lineage,
            self.durability.value,
            -1 if self.settle_floor is None else self.settle_floor,
            self.floor,
        )

    def take_ends(self) -> bytes:
        """The ends of the partitions touched since the last call, as a checkpoint stores them."""
        partitions = sorted(self._touched)
        self._touched.clear()
        nexts = array("q", (self.nexts[partition] for partition in partitions))
        return bodies.encode(EndsBody(array("I", partitions).tobytes(), nexts.tobytes()))

    @classmethod
    def from_start(cls, start: StartBody) -> LogState:
        state = cls(start.topic)
        state.last_timestamp = start.last_timestamp
        partitions = array("I", start.partitions)
        state.nexts = dict(zip(partitions, array("q", start.nexts), strict=True))
        starts = zip(partitions, array("q", start.starts), strict=True)
        state._starts = {partition: first for partition, first in starts if first}
        state._deleted = {p: BitMap64.deserialize(data) for p, data in start.deleted.items()}
        state.transactions = dict(start.transactions)
        state.lineage = start.lineage
        state.durability = Durability(start.durability)
        state.floor = start.floor
        state.settle_floor = None if start.settle_floor < 0 else start.settle_floor
        return state

    def _remember(self, app: str, done: Transaction) -> None:
        """Add a link and forget old ones.

        Forgotten are one-time applications whose link is old and, beyond LINK_RANGES_MAX, the
        ranges of the oldest links.
        """
        known = self.transactions
        oldest = done.timestamp - ONCE_SECONDS * 1_000_000
        for name, link in list(known.items()):
            if name == app or (name.startswith(ONCE) and link.timestamp < oldest):
                del known[name]
        excess = (
            sum(len(link.ranges) for link in known.values()) + len(done.ranges) - LINK_RANGES_MAX
        )
        for name, link in known.items():
            if excess <= 0:
                break
            excess -= len(link.ranges)
            known[name] = Transaction(link.epoch, {}, link.timestamp)
        known[app] = done

    def _begin(self, partition: int) -> None:
        """Add a partition if it is new; it starts at the floor."""
        if self.floor and partition not in self.nexts:
            self._starts[partition] = self.floor
            self.deletions += 1

    def _delete(self, partition: int, next_offset: int, delete: DeleteBody) -> None:
        self._begin(partition)
        self.nexts[partition] = max(next_offset, self.nexts.get(partition, 0))
        self.deletions += 1
        deleted = self._deleted.get(partition) or BitMap64()
        if delete.offsets:
            deleted |= BitMap64.deserialize(delete.offsets)
        start = max(delete.start, self._starts.get(partition, 0))
        if delete.returned:
            start = _return(BitMap64.deserialize(delete.returned), start, deleted)
        self._starts.pop(partition, None)
        if start:
            self._starts[partition] = start
            deleted.remove_range(0, start)
        if deleted:
            self._deleted[partition] = deleted
        else:
            self._deleted.pop(partition, None)


def _return(returned: BitMap64, start: int, deleted: BitMap64) -> int:
    """Remove returned offsets from `deleted`; return the start of the partition, now maybe lower.

    Offsets between the lower start and the old one that were not returned stay deleted.
    """
    first = min(returned.min(), start)
    deleted.add_range(first, start)
    deleted -= returned
    return first


def all_deleted(extent: PartitionRange, start: int, deleted: BitMap64 | None) -> bool:
    """Whether all offsets of an extent are before the start of the partition or deleted."""
    first = max(extent.first, start)
    count = 0 if deleted is None else deleted.range_cardinality(first, max(first, extent.next))
    return count == max(extent.next - first, 0)
