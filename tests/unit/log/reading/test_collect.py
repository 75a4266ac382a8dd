"""The frames of a log in order, file after file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.formats import scan as scan_module
from penstock.formats.bodies import ObjectRef
from penstock.formats.frames import Kind
from penstock.log.files.wal_files import WalFile, find_wal_files
from penstock.log.log import Log
from penstock.log.reading import collect as collect_module
from penstock.log.reading.collect import Collected, Cursor, collect
from penstock.log.recovery.chain import find_chain
from penstock.model.columns import Columns
from penstock.model.units import PartitionId, PartitionRange
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


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Segment]:
    directory = tmp_path_factory.mktemp("many")
    made = segments.make(directory, segments.many)
    return directory / "default/default/t", made


def files_in(directory: Path) -> list[WalFile]:
    return find_chain(DISK, find_wal_files(directory)).files


def recorded(gap: PartitionRange) -> bool:
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
    """Collect repeatedly until there is nothing new."""
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


def in_partitions(results: list[Collected]) -> dict[int, list[tuple[int, object]]]:
    """Offsets and messages of every partition, in the order of collection."""
    found: dict[int, list[tuple[int, object]]] = {}
    for partition, first, messages in (one for result in results for one in taken(result)):
        found.setdefault(partition, []).extend(enumerate(messages, first))
    return found


def as_written(segment: Segment) -> dict[int, list[tuple[int, object]]]:
    found: dict[int, list[tuple[int, object]]] = {}
    for partition, first, messages in written([segment]):
        found.setdefault(partition, []).extend(enumerate(messages, first))
    return found


def ends(segment: Segment, number: int) -> dict[int, int]:
    """Next offsets by partition before a frame."""
    return {
        stretch.partition: stretch.next
        for frame in segment.frames
        if frame.number < number
        for stretch in frame.written.stretches
    }


@pytest.mark.parametrize("bytes_max", [1, 500, 2000, 1 << 20])
@pytest.mark.parametrize("chunk", [200, 3000, 1 << 20])
def test_a_damaged_frame_is_passed_over_whatever_the_sizes(
    many: tuple[Path, Segment],
    directory: Path,
    bytes_max: int,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collect_module, "CHUNK_BYTES", chunk)
    hit = many[1].frames[len(many[1].frames) // 2]
    (directory / many[1].name).write_bytes(many[1].damaged(hit.body, b"\xff\xff"))
    found = in_partitions(everything(files_in(directory), bytes_max))
    lost = {(s.partition, n) for s in hit.written.stretches for n in range(s.first, s.next)}
    assert lost
    assert found == {
        partition: [one for one in messages if (partition, one[0]) not in lost]
        for partition, messages in as_written(many[1]).items()
    }


@pytest.mark.parametrize("bytes_max", [1, 500, 2000, 1 << 20])
@pytest.mark.parametrize("chunk", [200, 3000, 1 << 20])
@pytest.mark.parametrize("together", [3, 4096])
def test_many_small_frames_are_taken_once_in_few_batches(
    many: tuple[Path, Segment],
    bytes_max: int,
    chunk: int,
    together: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collect_module, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(scan_module, "RUN_FRAMES_MAX", together)
    results = everything(files_in(many[0]), bytes_max)
    assert in_partitions(results) == as_written(many[1])
    for result in results:
        assert sum(b.count for b in result.batches) <= 1 or result.size_bytes <= bytes_max
    if chunk == bytes_max == 1 << 20 and together > 3:
        assert [(b.partition, b.count) for b in results[0].batches] == [
            *((0, 60), (1, 20), (2, 1), (2, 1))
        ]


def test_a_collection_reads_hardly_more_than_it_takes(
    many: tuple[Path, Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect_module, "CHUNK_BYTES", 3000)
    read: list[int] = []

    class Watched(Unsynced):
        def read(self, fd: int, size: int, position: int) -> bytes:
            read.append(size)
            return super().read(fd, size, position)

    result = collect(Watched(), files_in(many[0]), START, 4000, recorded)
    assert 3000 < result.size_bytes <= 4000
    assert sum(read) < 4000 + 3000 // 2


def test_a_collection_continues_from_any_frame(many: tuple[Path, Segment]) -> None:
    files = files_in(many[0])
    for frame in many[1].frames:
        before = ends(many[1], frame.number)
        for position in (64, frame.position):
            result = collect(DISK, files, Cursor(frame.number, 0, position), 1 << 20, recorded)
            expected = {p: all_of[before.get(p, 0) :] for p, all_of in as_written(many[1]).items()}
            assert in_partitions([result]) == {
                p: found_rows for p, found_rows in expected.items() if found_rows
            }


def test_a_gap_among_many_small_frames_ends_a_collection_before_it(
    many: tuple[Path, Segment], directory: Path
) -> None:
    last = {partition: len(all_of) - 1 for partition, all_of in as_written(many[1]).items()}
    for hit, partition, first in (
        (frame, stretch.partition, stretch.first)
        for frame in many[1].frames
        for stretch in frame.written.stretches
        if 0 < stretch.first < last[stretch.partition]
    ):
        (directory / many[1].name).write_bytes(many[1].damaged(hit.body, b"\xff\xff"))
        files = files_in(directory)
        gaps: list[PartitionRange] = []

        def note(gap: PartitionRange, gaps: list[PartitionRange] = gaps) -> bool:
            gaps.append(gap)
            return False

        result = collect(DISK, files, START, 1 << 20, note)
        following = next(
            frame
            for frame in many[1].frames
            for stretch in frame.written.stretches
            if (stretch.partition, stretch.first) == (partition, first + 1)
        )
        assert gaps == [PartitionRange(partition, first, first + 1)]
        assert result.cursor.position == following.position
        assert hit.number <= result.cursor.frame <= following.number
        before = ends(many[1], following.number)
        expected = {p: all_of[: before.get(p, 0)] for p, all_of in as_written(many[1]).items()}
        expected[partition].remove(expected[partition][first])
        assert in_partitions([result]) == {
            p: found_rows for p, found_rows in expected.items() if found_rows
        }
        whole = collect(DISK, files, START, 1 << 20, recorded)
        expected = as_written(many[1])
        expected[partition].remove(expected[partition][first])
        assert in_partitions([whole]) == expected


def test_the_first_of_several_gaps_ends_a_collection(
    many: tuple[Path, Segment], directory: Path
) -> None:
    in_one, in_zero = (
        next(
            frame
            for frame in many[1].frames
            for stretch in frame.written.stretches
            if (stretch.partition, stretch.first) == place
        )
        for place in ((1, 3), (0, 12))
    )
    damaged = bytearray(many[1].data)
    damaged[in_one.body] ^= 1
    damaged[in_zero.body] ^= 1
    (directory / many[1].name).write_bytes(damaged)
    result = collect(DISK, files_in(directory), START, 1 << 20, lambda gap: False)
    assert {p: len(found_rows) for p, found_rows in in_partitions([result]).items()} == {
        0: 12,
        1: 3,
    }


def test_links_between_small_frames_are_taken_in_order(tmp_path: Path) -> None:
    async def write(log: Log) -> list[segments.Written]:
        made = [segments.Written(Kind.CHECKPOINT, 0)]
        first = 0
        for number in range(4):
            await log.append(segments.run(0, b"%d" % number))
            raw = segments.raw(0, first, b"%d" % number)
            made.append(segments.Written(Kind.BATCH, len(made), (raw,)))
            for epoch in (2 * number + 1, 2 * number + 2):
                await log.link("app", epoch, {PartitionId(0): [ObjectRef("k", 2, 9, 9)]})
                linked = segments.Stretch(0, first + 1, (), 2)
                made.append(segments.Written(Kind.LINK, len(made), (linked,)))
                first += 2
            first += 1
        return made

    made = segments.make(tmp_path, write)
    results = everything(files_in(tmp_path / "default/default/t"), 1 << 20)
    epochs = [[link.epoch for _, link in result.links] for result in results]
    assert epochs == [[], [1, 2], [], [3, 4], [], [5, 6], [], [7, 8]]
    assert [batch for result in results for batch in taken(result)] == written([made])


def test_raw_messages_rows_and_links_are_not_taken_together(
    mixed: tuple[Path, list[Segment]],
) -> None:
    results = everything(files_in(mixed[0]), 1 << 20)
    assert [batch for result in results for batch in taken(result)] == written(mixed[1])
    kinds = [{type(batch.content) for batch in result.batches} for result in results]
    assert all(len(kind) <= 1 for kind in kinds)
    [linked] = [result for result in results if result.links]
    assert linked.batches == []
    [(timestamp, link)] = linked.links
    assert (link.app, link.epoch) == ("app", 1)
    stamps = [batch.first_timestamp for result in results for batch in result.batches]
    assert min(stamps) <= timestamp <= max(stamps)


def test_an_unrecorded_gap_ends_a_collection(
    several: tuple[Path, list[Segment]], directory: Path
) -> None:
    for segment in several[1]:
        hit = segment.frames[1]
        damaged = segment.damaged(hit.body + 1, b"\xff") if segment is several[1][1] else None
        (directory / segment.name).write_bytes(damaged or segment.data)
    files = files_in(directory)
    gaps: list[PartitionRange] = []

    def note(gap: PartitionRange) -> bool:
        gaps.append(gap)
        return False

    first = collect(DISK, files, START, 1 << 20, note)
    assert taken(first) == written(several[1][:1])
    assert gaps == [PartitionRange(0, 2, 4)]
    remaining = collect(DISK, files, first.cursor, 1 << 20, note)
    assert taken(remaining) == written(several[1][2:])


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
