"""The frames of a log in order, file after file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.formats.extents import Extent
from penstock.log import collect as collect_module
from penstock.log.chain import find_chain
from penstock.log.collect import Collected, Cursor, collect
from penstock.log.files import WalFile, find_wal_files
from penstock.model.columns import Columns
from tests.unit.log import segments
from tests.unit.log.disks import Unsynced
from tests.unit.log.segments import Segment

DISK = Unsynced()
START = Cursor(0, 0, 64)
Taken = list[tuple[int, int, list[object]]]
"""Partition, first offset and messages of every batch."""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Segment]]:
    directory = tmp_path_factory.mktemp("mixed")
    return directory / "default/default/t", [segments.make(directory, segments.mixed)]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Segment]]:
    directory = tmp_path_factory.mktemp("several")
    made = segments.make_several(directory)
    return directory / "default/default/t", made


def files_in(directory: Path) -> list[WalFile]:
    return find_chain(DISK, find_wal_files(directory)).files


def recorded(gap: Extent) -> bool:
    return True


def taken(result: Collected) -> Taken:
    return [
        (
            int(batch.partition),
            int(batch.first_offset),
            (
                batch.content.payload
                if isinstance(batch.content, Columns)
                else batch.content.column("n")
            ).to_pylist(),
        )
        for batch in result.batches
    ]


def written(made: list[Segment]) -> Taken:
    return [
        (stretch.partition, stretch.first, list(stretch.messages))
        for segment in made
        for frame in segment.frames
        for stretch in frame.written.stretches
        if stretch.messages
    ]


def everything(files: list[WalFile], bytes_max: int) -> list[Collected]:
    """Collections one behind the other until there is nothing new."""
    results: list[Collected] = []
    cursor = START
    while True:
        result = collect(DISK, files, cursor, bytes_max, recorded)
        if result.cursor == cursor:
            return results
        assert result.cursor > cursor
        results.append(result)
        cursor = result.cursor


@pytest.mark.parametrize("bytes_max", [1, 200, 1 << 20])
@pytest.mark.parametrize("chunk", [64, 200, 1 << 20])
def test_every_batch_is_taken_once_in_order_whatever_the_sizes(
    several: tuple[Path, list[Segment]],
    bytes_max: int,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collect_module, "CHUNK_BYTES", chunk)
    results = everything(files_in(several[0]), bytes_max)
    assert [batch for result in results for batch in taken(result)] == written(several[1])
    last = several[1][-1]
    closing = 1
    size = (several[0] / last.name).stat().st_size
    assert results[-1].cursor == Cursor(last.frames[-1].number + 1 + closing, 3, size)
    assert all(len(result.batches) <= 1 or result.size_bytes <= bytes_max for result in results)


def test_raw_messages_and_rows_are_not_taken_together_and_links_go_with_either(
    mixed: tuple[Path, list[Segment]],
) -> None:
    results = everything(files_in(mixed[0]), 1 << 20)
    assert [batch for result in results for batch in taken(result)] == written(mixed[1])
    kinds = [{type(batch.content) for batch in result.batches} for result in results]
    assert all(len(kind) <= 1 for kind in kinds)
    links = [link for result in results for link in result.links]
    assert [(link.app, link.epoch) for link in links] == [("app", 1)]


def test_a_gap_that_nobody_recorded_ends_a_collection(
    several: tuple[Path, list[Segment]], directory: Path
) -> None:
    for segment in several[1]:
        hit = segment.frames[1]
        damaged = segment.damaged(hit.body + 1, b"\xff") if segment is several[1][1] else None
        (directory / segment.name).write_bytes(damaged or segment.data)
    files = files_in(directory)
    gaps: list[Extent] = []

    def note(gap: Extent) -> bool:
        gaps.append(gap)
        return False

    first = collect(DISK, files, START, 1 << 20, note)
    assert taken(first) == written(several[1][:1])
    assert gaps == [Extent(0, 2, 4)]
    rest = collect(DISK, files, first.cursor, 1 << 20, note)
    assert taken(rest) == written(several[1][2:])


def test_a_file_that_was_cut_under_us_is_not_read_for_ever(
    several: tuple[Path, list[Segment]], directory: Path
) -> None:
    for segment in several[1]:
        (directory / segment.name).write_bytes(segment.data)
    files = files_in(directory)
    os.truncate(files[1].path, 200)
    assert taken(collect(DISK, files, START, 1 << 20, recorded)) == written(
        [several[1][0], *several[1][2:]]
    )
