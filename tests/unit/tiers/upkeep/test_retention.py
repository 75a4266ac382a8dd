from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.formats.frames import FILE_MAGIC, FILE_VERSION, FileHeader
from penstock.log import LogState, WalFile
from penstock.model.units import Offset, PartitionId, PartitionRange
from penstock.tiers.settings import TierSettings
from penstock.tiers.upkeep import retention
from tests.broker.storage import entry

SECOND = 1_000_000
P3 = PartitionId(3)


def wal(*sizes: int) -> list[WalFile]:
    """Files of ten frames each, begun a second apart, the first at second 0."""
    return [
        WalFile(
            Path(f"file-{n}"),
            FileHeader(FILE_MAGIC, FILE_VERSION, 0, 1, n, n * 10, n * SECOND, 0, 0, 0),
            size,
        )
        for n, size in enumerate(sizes)
    ]


def gone(files: list[WalFile], frame: int, needed: int | None = None, **limits: float) -> list[int]:
    """The sequence numbers of the files that are prunable at second 100."""
    none = TierSettings(wal_seconds_min=0, wal_bytes_min=0, wal_bytes_max=1 << 60)
    settings = replace(none, **limits)  # type: ignore[arg-type]
    found = retention.prunable(files, frame, settings, 100 * SECOND, needed)
    return [file.sequence for file in found]


@pytest.mark.feature("T20")
@pytest.mark.parametrize(
    ("frame", "files"),
    [(0, []), (9, []), (10, [0]), (19, [0]), (20, [0, 1]), (30, [0, 1, 2]), (99, [0, 1, 2])],
)
def test_a_file_is_prunable_once_all_its_frames_are_uploaded_but_never_the_last_file(
    frame: int, files: list[int]
) -> None:
    assert gone(wal(5, 5, 5, 5), frame) == files


@pytest.mark.feature("T20")
def test_files_younger_than_the_least_age_are_retained() -> None:
    # The last message of a file is as old as the start of the next file.
    assert gone(wal(5, 5, 5, 5), 99, wal_seconds_min=98) == [0, 1]
    assert gone(wal(5, 5, 5, 5), 99, wal_seconds_min=99) == [0]
    assert gone(wal(5, 5, 5, 5), 99, wal_seconds_min=100) == []


@pytest.mark.feature("T20")
def test_the_time_when_the_oldest_file_becomes_prunable_is_known() -> None:
    settings = TierSettings(wal_seconds_min=60, wal_bytes_min=5, wal_bytes_max=1 << 60)
    at = retention.prunable_at(wal(5, 5, 5), 99, settings, None)
    assert at == 61 * SECOND
    assert retention.prunable_at(wal(5, 5, 5), 10, settings, None) == at
    assert retention.prunable_at(wal(5, 5, 5), 9, settings, None) is None, "not uploaded"
    assert retention.prunable_at(wal(5, 5, 5), 99, settings, 9) is None, "a reader needs it"
    much = replace(settings, wal_bytes_min=11)
    assert retention.prunable_at(wal(5, 5, 5), 99, much, None) is None, "so much stays"
    assert retention.prunable_at(wal(5), 99, settings, None) is None, "the last file stays"
    assert retention.prunable_at([], 99, settings, None) is None


@pytest.mark.feature("T20")
def test_a_least_size_of_files_is_retained() -> None:
    files = wal(10, 20, 30, 40)
    assert {floor: gone(files, 99, wal_bytes_min=floor) for floor in (40, 41, 70, 90, 91)} == {
        40: [0, 1, 2],
        41: [0, 1],
        70: [0, 1],
        90: [0],
        91: [],
    }


@pytest.mark.feature("T20")
def test_files_that_a_subscription_needs_are_retained_up_to_a_size() -> None:
    files = wal(10, 20, 30, 40)
    assert {needed: gone(files, 99, needed) for needed in (0, 9, 10, 25, 30)} == {
        0: [],
        9: [],
        10: [0],
        25: [0, 1],
        30: [0, 1, 2],
    }
    assert {
        limit: gone(files, 99, needed=0, wal_bytes_max=limit) for limit in (100, 99, 90, 89, 1)
    } == {100: [], 99: [0], 90: [0], 89: [0, 1], 1: [0, 1, 2]}


@pytest.mark.feature("T20")
def test_no_size_limit_prunes_files_that_are_not_uploaded() -> None:
    assert gone(wal(10, 20, 30, 40), frame=10, needed=0, wal_bytes_max=1) == [0]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=6),
    st.integers(0, 70),
    st.none() | st.integers(0, 70),
    st.integers(90, 101),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_the_oldest_uploaded_files_are_pruned_first(
    sizes: list[int], frame: int, needed: int | None, seconds: int, floor: int, limit: int
) -> None:
    files = wal(*sizes)
    limits = {"wal_seconds_min": seconds, "wal_bytes_min": floor, "wal_bytes_max": limit}
    found = gone(files, frame, needed, **limits)
    assert found == list(range(len(found)))
    assert all(after.header.first_frame <= frame for after in files[1 : len(found) + 1])
    assert not found or sum(sizes[len(found) :]) >= floor


def test_an_object_is_expired_when_all_its_offsets_are_before_the_log_start() -> None:
    entries = [
        entry(PartitionRange(0, 0, 10), PartitionRange(1, 0, 5), sequence=0),
        entry(PartitionRange(0, 10, 20), sequence=1),
        entry(PartitionRange(2, 0, 1), sequence=2),
    ]
    starts = [(9, 5), (10, 4), (10, 5), (20, 4), (20, 5)]
    dead = [retention.expired_objects(entries, {0: zero, 1: one}) for zero, one in starts]
    assert [[e.sequence for e in found] for found in dead] == [[], [], [0], [1], [0, 1]]


@pytest.mark.feature("T20")
def test_the_oldest_objects_expire_until_the_size_limit_is_met() -> None:
    entries = [
        entry(PartitionRange(0, 10, 20), sequence=2, size=30),
        entry(PartitionRange(0, 0, 10), PartitionRange(1, 0, 5), sequence=1, size=20),
        entry(PartitionRange(1, 5, 9), sequence=3, size=50),
    ]
    starts = {limit: retention.starts_by_bytes(entries, limit) for limit in (100, 99, 80, 79, 0)}
    assert starts == {
        100: {},
        99: {0: 10, 1: 5},
        80: {0: 10, 1: 5},
        79: {0: 20, 1: 5},
        0: {0: 20, 1: 9},
    }


def _state(next_: int, start: int, deleted: set[int]) -> LogState:
    state = LogState("t")
    state.restore(P3, Offset(start), BitMap64(deleted).serialize(), Offset(next_))
    return state


@pytest.mark.feature("T20")
@given(st.integers(0, 30), st.sets(st.integers(0, 40)), st.integers(0, 50))
def test_a_message_limit_retains_the_newest_messages_without_counting_deleted_ones(
    start: int, deleted: set[int], messages_max: int
) -> None:
    state = _state(41, start, deleted)
    kept = retention.start_by_count(state, P3, messages_max)
    live = [offset for offset in range(start, 41) if offset not in deleted]
    after = [offset for offset in live if offset >= kept]
    assert after == live[max(len(live) - messages_max, 0) :]
    assert start <= kept <= 41


@pytest.mark.feature("T20")
def test_a_takeover_gap_does_not_remove_messages() -> None:
    hole = BitMap64()
    hole.add_range(10, 1 << 24)
    state = LogState("t")
    state.restore(P3, Offset(0), hole.serialize(), Offset((1 << 24) + 5))
    assert retention.start_by_count(state, P3, 8) == 7
