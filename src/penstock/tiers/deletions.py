"""What was deleted, as it was at one moment: the log's own sets change under a thread at work."""

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
    """First kept offsets and deleted ones behind them, by partition."""

    starts: Mapping[int, int]
    bitmaps: Mapping[int, BitMap64]

    @classmethod
    def of(cls, state: LogState) -> Deletions:
        """Those of a log, copied."""
        return cls(state.starts(), state.bitmaps())

    @property
    def partitions(self) -> list[int]:
        """Those in which something is deleted."""
        return [*{*self.starts, *self.bitmaps}]

    def recorded(self, gap: PartitionRange) -> bool:
        """Whether none of these offsets has a message, on purpose."""
        start = self.starts.get(gap.partition, 0)
        return all_deleted(gap, start, self.bitmaps.get(gap.partition))

    def without(self, batch: Batch) -> Batch:
        """What is left of a batch."""
        start = self.starts.get(batch.partition, 0)
        batch = batch.starting_at(Offset(min(start, batch.next_offset)))
        bitmap = self.bitmaps.get(batch.partition)
        return batch if bitmap is None else batch.without(bitmap)

    def alive(self, partition: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these offsets are left."""
        kept = offsets >= self.starts.get(partition, 0)
        bitmap = self.bitmaps.get(partition)
        if bitmap is None:
            return kept
        dead = np.asarray(bitmap.to_array(), np.uint64).astype(np.int64)
        return kept & ~np.isin(offsets, dead)
