from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap64

from penstock.log import LogState
from penstock.model.units import Offset, PartitionId
from penstock.tiers.deletions import Deletions
from tests.unit.formats.contents import raw


def state() -> LogState:
    made = LogState("t")
    made.restore(PartitionId(0), Offset(3), BitMap64([5, 6]).serialize(), Offset(20))
    made.restore(PartitionId(1), Offset(0), BitMap64([1]).serialize(), Offset(20))
    made.restore(PartitionId(2), Offset(4), b"", Offset(20))
    return made


@pytest.mark.feature("T35")
def test_a_batch_loses_the_messages_that_were_deleted_or_purged() -> None:
    deletions = Deletions.of(state())
    kept = [
        deletions.without_deleted(raw(0, [b""] * 8, partition)).offsets().tolist()
        for partition in range(4)
    ]
    assert kept == [[3, 4, 7], [0, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert deletions.without_deleted(raw(0, [b""] * 2)).messages == 0


@pytest.mark.feature("T35")
def test_the_live_mask_excludes_deleted_and_purged_rows() -> None:
    deletions = Deletions.of(state())
    offsets = np.arange(8)
    alive = [offsets[deletions.live_mask(partition, offsets)].tolist() for partition in range(4)]
    assert alive == [[3, 4, 7], [0, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert sorted(deletions.partitions) == [0, 1, 2]


def test_later_deletions_do_not_change_a_copy() -> None:
    log = state()
    deletions = Deletions.of(log)
    log.restore(PartitionId(0), Offset(0), BitMap64([7]).serialize(), Offset(20))
    log.restore(PartitionId(1), Offset(6), b"", Offset(20))
    kept = [deletions.without_deleted(raw(0, [b""] * 8, p)).offsets().tolist() for p in (0, 1)]
    assert kept == [[3, 4, 7], [0, 2, 3, 4, 5, 6, 7]]
