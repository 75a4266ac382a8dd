"""A copy of a topic's deletions, for threads: the log's own sets change while they work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from penstock.log import LogState, all_deleted
from penstock.model.batch import Batch
from penstock.model.units import Offset, PartitionRange


@dataclass(frozen=True, slots=True)
class Deletions:
    """The log start offset and the deleted offsets after it, by partition."""

    starts: Mapping[int, int]
    bitmaps: Mapping[int, BitMap64]

    @classmethod
    def of(cls, state: LogState) -> Deletions:
        """A copy of the deletions of a log."""
        return cls(state.starts(), state.bitmaps())

    @property
    def partitions(self) -> list[int]:
        """The partitions with deletions."""
        return [*{*self.starts, *self.bitmaps}]

    def cover(self, gap: PartitionRange) -> bool:
        """Whether none of these offsets has a message, because all were deleted."""
        start = self.starts.get(gap.partition, 0)
        return all_deleted(gap, start, self.bitmaps.get(gap.partition))

    def without_deleted(self, batch: Batch) -> Batch:
        """The batch without deleted messages."""
        start = self.starts.get(batch.partition, 0)
        batch = batch.starting_at(Offset(min(start, batch.next_offset)))
        bitmap = self.bitmaps.get(batch.partition)
        return batch if bitmap is None else batch.without(bitmap)

    def live_mask(self, partition: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these offsets are not deleted."""
        live = offsets >= self.starts.get(partition, 0)
        bitmap = self.bitmaps.get(partition)
        if bitmap is None:
            return live
        deleted = np.asarray(bitmap.to_array(), np.uint64).astype(np.int64)
        return live & ~np.isin(offsets, deleted)
