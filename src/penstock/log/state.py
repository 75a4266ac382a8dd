"""What a log knows about its partitions: where they start and end, what is deleted, which
transactions were linked. It changes only by frames, in frame order, so that recovery rebuilds it
exactly.
"""

from __future__ import annotations

from array import array

from pyroaring import BitMap64

from penstock.formats import batches, bodies
from penstock.formats.bodies import (
    LINK_RANGES_MAX,
    ONCE,
    ONCE_SECONDS,
    Delete,
    Ends,
    Link,
    Start,
    Transaction,
)
from penstock.formats.extents import Extent, ends_of
from penstock.formats.frames import Buffer, FrameHeader, Kind
from penstock.model.durability import Durability
from penstock.model.units import Offset, PartitionId


class LogState:
    """Committed state of one log; a partition appears with its first message."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.last_timestamp = 0
        self.lineage = ""
        self.durability = Durability.FSYNC
        self.deletions = 0
        """How many deletions were applied: changes when the set of deleted offsets does."""
        self.nexts: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._deleted: dict[int, BitMap64] = {}
        self.transactions: dict[str, Transaction] = {}
        """By application, its last link; the newest is the last."""
        self.linked_frame = 0
        """Behind the last link that was applied."""
        self.settle_floor: int | None = None
        """First frame whose settlements may still be needed."""
        self.floor = 0
        """Where partitions begin that are not known yet."""
        self._touched: set[int] = set()

    def next(self, partition: PartitionId) -> Offset:
        """The offset the next message of the partition gets."""
        return Offset(self.nexts.get(partition, self.floor))

    def start(self, partition: PartitionId) -> Offset:
        """The first offset that is kept."""
        if partition not in self.nexts:
            return Offset(self.floor)
        return Offset(self._starts.get(partition, 0))

    def starts(self) -> dict[int, int]:
        """First kept offsets of the partitions that do not start at 0."""
        return dict(self._starts)

    def bitmap(self, partition: PartitionId) -> BitMap64 | None:
        """Deleted offsets from the start on, None when there are none."""
        return self._deleted.get(partition)

    def bitmaps(self) -> dict[int, BitMap64]:
        """Copies of all of them."""
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

    def gap_is_recorded(self, gap: Extent) -> bool:
        """Whether none of these offsets has a message, on purpose."""
        partition = PartitionId(gap.partition)
        return all_deleted(gap, self.start(partition), self._deleted.get(partition))

    def deleted(self) -> dict[int, bytes]:
        """Bitmaps of deleted offsets, serialised, of the partitions that have any."""
        for bitmap in self._deleted.values():
            bitmap.run_optimize()
        return {p: bitmap.serialize() for p, bitmap in self._deleted.items()}

    def live_count(self, partition: PartitionId) -> int:
        """How many messages of the partition are there to read."""
        deleted = self._deleted.get(partition)
        span = self.next(partition) - self.start(partition)
        return span if deleted is None else span - len(deleted)

    def apply(self, header: FrameHeader, body: Buffer, last_timestamp: int | None = None) -> None:
        """Take in a committed frame; who has a batch at hand tells its last timestamp instead of
        its body.
        """
        if header.kind == Kind.BATCH:
            self._begin(header.partition)
            self.nexts[header.partition] = header.next_offset
            self._touched.add(header.partition)
        elif header.kind == Kind.LINK:
            link = bodies.decode(Link, body)
            ranges = {p.partition: (p.first_offset, p.first_offset + p.rows) for p in link.parts}
            for partition, (_, next_) in ranges.items():
                self._begin(partition)
                self.nexts[partition] = next_
            self._remember(link.app, Transaction(link.epoch, ranges, header.first_timestamp))
            self._touched.update(ranges)
            self.linked_frame = header.number + 1
        elif header.kind == Kind.DELETE:
            self._delete(header.partition, header.first_offset, bodies.decode(Delete, body))
            self._touched.add(header.partition)
        elif header.kind == Kind.SETTLE and self.settle_floor is None:
            self.settle_floor = header.number
        else:
            for partition, next_ in ends_of(header, body).items():
                self.nexts[partition] = max(next_, self.nexts.get(partition, 0))
        if last_timestamp is None:
            last_timestamp = batches.last_timestamp(header, body)
        self.last_timestamp = max(self.last_timestamp, last_timestamp)

    def reach(self, partition: int, next_: int) -> None:
        """All offsets before `next_` have been given out, whether the messages are there or not."""
        self._begin(partition)
        self.nexts[partition] = max(next_, self.nexts.get(partition, 0))

    def skip(self, partition: int, next_: int) -> None:
        """The partition goes on at `next_`; from where it is up to there nothing ever was."""
        hole = BitMap64()
        hole.add_range(self.next(PartitionId(partition)), next_)
        self._begin(partition)
        self._delete(partition, next_, Delete(0, hole.serialize(), ""))

    def restore(self, partition: PartitionId, start: Offset, deleted: bytes, next_: Offset) -> None:
        """Take over what another log knew of a partition."""
        self._delete(partition, next_, Delete(start, deleted, ""))

    def to_start(self) -> Start:
        """The state as the first frame of a file carries it."""
        partitions = sorted(self.nexts)
        return Start(
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
        """Where the partitions touched since the last time end, as a checkpoint carries it."""
        partitions = sorted(self._touched)
        self._touched.clear()
        nexts = array("q", (self.nexts[partition] for partition in partitions))
        return bodies.encode(Ends(array("I", partitions).tobytes(), nexts.tobytes()))

    @classmethod
    def from_start(cls, start: Start) -> LogState:
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
        """Nobody asks any more for links of applications that made one long ago, and no other; nor,
        of the others, for offsets of long ago.
        """
        known = self.transactions
        oldest = done.timestamp - ONCE_SECONDS * 1_000_000
        for name, one in list(known.items()):
            if name == app or (name.startswith(ONCE) and one.timestamp < oldest):
                del known[name]
        excess = sum(len(one.ranges) for one in known.values()) + len(done.ranges) - LINK_RANGES_MAX
        for name, one in known.items():
            if excess <= 0:
                break
            excess -= len(one.ranges)
            known[name] = Transaction(one.epoch, {}, one.timestamp)
        known[app] = done

    def _begin(self, partition: int) -> None:
        """A partition appears: nothing before the floor is there to be read."""
        if self.floor and partition not in self.nexts:
            self._starts[partition] = self.floor
            self.deletions += 1

    def _delete(self, partition: int, next_offset: int, delete: Delete) -> None:
        self.nexts[partition] = max(next_offset, self.nexts.get(partition, 0))
        self.deletions += 1
        deleted = self._deleted.get(partition) or BitMap64()
        if delete.offsets:
            deleted |= BitMap64.deserialize(delete.offsets)
        start = max(delete.start, self._starts.get(partition, 0))
        if start:
            self._starts[partition] = start
            deleted.remove_range(0, start)
        if deleted:
            self._deleted[partition] = deleted
        else:
            self._deleted.pop(partition, None)


def all_deleted(extent: Extent, start: int, deleted: BitMap64 | None) -> bool:
    """Whether all these offsets of a partition are before its start or deleted."""
    first = max(extent.first, start)
    held = 0 if deleted is None else deleted.range_cardinality(first, max(first, extent.next))
    return held == max(extent.next - first, 0)
