import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import frame_table
from penstock.formats.frame_table import (
    STRETCH_BYTES,
    FrameTable,
    FrameTableWriter,
    TableEntry,
    entries_from,
    entry_at_time,
)
from penstock.model.errors import FormatError
from penstock.model.units import PartitionRange

Frames = list[tuple[PartitionRange, int, int, int]]
"""Offsets, position, length and timestamp of every frame."""


@st.composite
def frames(draw: st.DrawFn) -> Frames:
    """Frames of a few partitions in file order, with gaps between some of them."""
    result: Frames = []
    nexts = {0: 0, 3: 100, 1 << 31: 1 << 40}
    position, stamp = 64, 1000
    for _ in range(draw(st.integers(0, 12))):
        partition = draw(st.sampled_from(sorted(nexts)))
        nexts[partition] += draw(st.sampled_from([0, 0, 5]))
        position += draw(st.sampled_from([0, 0, 72]))
        stamp += draw(st.sampled_from([0, 0, 1, 10]))
        count = draw(st.integers(1, 3))
        length = draw(st.sampled_from([72, 80, STRETCH_BYTES // 2, 2 * STRETCH_BYTES]))
        extent = PartitionRange(partition, nexts[partition], nexts[partition] + count)
        result.append((extent, position, length, stamp))
        nexts[partition] += count
        position += length
    return result


def filled(made: Frames) -> FrameTableWriter:
    writer = FrameTableWriter()
    for extent, position, length, stamp in made:
        writer.add(extent, position, length, stamp)
    return writer


def both(made: Frames) -> list[FrameTableWriter | FrameTable]:
    """The table of the active file, and the table decoded from the sealed file."""
    return [filled(made), frame_table.decode(filled(made).encode())]


@given(frames(), st.integers(-1, 60))
def test_every_offset_from_any_start_is_covered_in_order(made: Frames, start: int) -> None:
    for known in both(made):
        for partition in (0, 3, 1 << 31, 77):
            base = {0: 0, 3: 100, 1 << 31: 1 << 40, 77: 0}[partition] + start
            mine = [frame for frame in made if frame[0].partition == partition]
            entries = list(entries_from(known, partition, base))
            assert all(e.next_offset > base for e in entries)
            assert entries == sorted(entries, key=lambda e: e.position)
            for extent, position, length, _ in mine:
                covering = [
                    e
                    for e in entries
                    if e.position <= position and position + length <= e.position + e.length
                ]
                assert len(covering) == (extent.next > base or len(covering) > 0)
                for entry in covering:
                    assert entry.first_offset <= extent.first < extent.next <= entry.next_offset


@given(frames())
def test_entries_hold_neighbouring_frames_of_one_partition_only(made: Frames) -> None:
    for known in both(made):
        lengths = 0
        for partition in (0, 3, 1 << 31):
            for entry in entries_from(known, partition, 0):
                inside = [
                    frame
                    for frame in made
                    if entry.position <= frame[1] < entry.position + entry.length
                ]
                assert {frame[0].partition for frame in inside} == {partition}
                assert entry == TableEntry(
                    partition,
                    inside[0][0].first,
                    inside[-1][0].next,
                    inside[0][1],
                    sum(frame[2] for frame in inside),
                    inside[0][3],
                )
                assert len(inside) == 1 or entry.length <= STRETCH_BYTES
                offsets = sum(extent.next - extent.first for extent, _, _, _ in inside)
                assert offsets == entry.next_offset - entry.first_offset
                lengths += entry.length
        assert lengths == sum(frame[2] for frame in made)


@given(frames(), st.integers(995, 1100))
def test_the_entry_of_a_time_is_the_last_that_starts_before_it(made: Frames, when: int) -> None:
    for known in both(made):
        for partition in (0, 3, 1 << 31, 77):
            entries = list(entries_from(known, partition, 0))
            before = [entry for entry in entries if entry.first_timestamp < when]
            expected = before[-1] if before else entries[0] if entries else None
            assert entry_at_time(known, partition, when) == expected


def test_neighbours_are_one_entry_up_to_the_limit() -> None:
    third = STRETCH_BYTES // 3
    made = [(PartitionRange(0, n, n + 1), 64 + n * third, third, n) for n in range(4)]
    assert list(entries_from(filled(made), 0, 0)) == [
        TableEntry(0, 0, 3, 64, 3 * third, 0),
        TableEntry(0, 3, 4, 64 + 3 * third, third, 3),
    ]


def test_each_partition_of_a_link_has_an_entry_at_its_position() -> None:
    made = [(PartitionRange(p, 0, 5), 64, 80, 9) for p in (4, 1)] + [
        (PartitionRange(1, 5, 6), 144, 72, 10)
    ]
    assert list(entries_from(filled(made), 4, 0)) == [TableEntry(4, 0, 5, 64, 80, 9)]
    assert list(entries_from(filled(made), 1, 0)) == [TableEntry(1, 0, 6, 64, 152, 9)]


def test_a_finished_table_has_its_partitions_and_its_size() -> None:
    made = [(PartitionRange(p, 0, 1), 64 + 72 * p, 72, 0) for p in range(5)]
    done = frame_table.decode(filled(made).encode())
    assert (done.partitions, len(done)) == ([0, 1, 2, 3, 4], 5)
    assert done.nbytes >= 5 * 40
    assert len(frame_table.decode(FrameTableWriter().encode())) == 0


@pytest.mark.parametrize("wrong", [b"", b"\1\0", b"\1\0\0\0", b"\1\0\0\0nonsense"])
def test_bytes_that_are_not_a_table_are_refused(wrong: bytes) -> None:
    with pytest.raises(FormatError, match="a frame table"):
        frame_table.decode(wrong)


def test_a_table_with_a_wrong_number_of_entries_is_refused() -> None:
    data = filled([(PartitionRange(0, 0, 1), 64, 72, 0)]).encode()
    for count in (0, 2, (1 << 32) - 1):
        with pytest.raises(FormatError, match="a frame table"):
            frame_table.decode(count.to_bytes(4, "little") + data[4:])
