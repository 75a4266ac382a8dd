"""Joined frames have the messages of the single frames."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import batches, frame_groups, packed
from penstock.formats.frame_groups import HEADER, Frames, decode, groups
from penstock.formats.frames import Codec, Flag, FrameHeader, Kind, encode_frame
from penstock.model.batch import Batch, concat
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from tests.unit.formats import golden

MARK = 0x5EED1234


class Frame(NamedTuple):
    """A frame at its position."""

    position: int
    header: FrameHeader


class Written(NamedTuple):
    """Consecutive frames."""

    data: bytes
    frames: list[Frame]

    def stretch(self, *kinds: Kind) -> Frames:
        wanted = [f.position for f in self.frames if f.header.kind in kinds]
        return Frames.at(self.data, wanted)

    def one_by_one(self) -> list[Batch]:
        data = pa.py_buffer(self.data)
        return [
            batches.decode(f.header, data, f.position)
            for f in self.frames
            if f.header.kind == Kind.BATCH
        ]


class Asked(NamedTuple):
    """A frame to write; `skipped` offsets of its partition are missing before it."""

    kind: Kind
    partition: int
    skipped: int
    timestamp: int
    content: Columns | pa.RecordBatch
    timestamps: list[int] | None = None


def columns(
    subjects: bytes | list[bytes], payloads: list[bytes], headers: list[bytes] | None = None
) -> Columns:
    subject = subjects if isinstance(subjects, bytes) else pa.array(subjects, pa.binary())
    blocks = None if headers is None else pa.array(headers, pa.binary())
    return Columns(subject, pa.array(payloads, pa.binary()), blocks)


def messages_in(content: Columns | pa.RecordBatch) -> int:
    return len(content.payload) if isinstance(content, Columns) else content.num_rows


def message(payload: bytes, subject: bytes = b"s", timestamp: int = 5) -> Asked:
    return Asked(Kind.BATCH, 0, 0, timestamp, columns(subject, [payload]))


def write(asked: Iterable[Asked]) -> Written:
    data = bytearray(8)
    frames: list[Frame] = []
    nexts: dict[int, int] = {}
    for number, one in enumerate(asked):
        stamps = None if one.timestamps is None else pa.array(one.timestamps, pa.int64())
        codec, flags, pieces = batches.encode(one.content, stamps)
        first = nexts.get(one.partition, 0) + one.skipped
        size = sum(map(len, pieces))
        header = FrameHeader(
            *(MARK, size, one.kind, codec, flags, one.partition, number, number, 0),
            *(first, one.timestamp, messages_in(one.content)),
        )
        if one.kind == Kind.BATCH:
            nexts[one.partition] = header.next_offset
        frames.append(Frame(len(data), header))
        data += b"".join(encode_frame(header, pieces))
    return Written(bytes(data), frames)


def rows(found: Iterable[Batch]) -> list[tuple[object, ...]]:
    """Every message with partition, offset, timestamp and content; missing headers are empty."""
    described: list[tuple[object, ...]] = []
    for batch in found:
        content = batch.content
        values: list[list[object]]
        if isinstance(content, Columns):
            subjects, payloads = content.subjects().to_pylist(), content.payload.to_pylist()
            blocks = [b""] * batch.count if content.headers is None else content.headers.to_pylist()
            values = [subjects, blocks, payloads]
        else:
            values = [column.to_pylist() for column in content.columns]
        stamps = batch.timestamp_column().to_pylist()
        partitions = [int(batch.partition)] * batch.count
        described += zip(partitions, batch.offsets().tolist(), stamps, *values, strict=True)
    return described


BLOCKS = st.binary(max_size=5)


@st.composite
def raw(draw: st.DrawFn) -> Asked:
    count = draw(st.sampled_from([1, 1, 1, 2, 5, 20]))
    many = st.lists(BLOCKS, min_size=count, max_size=count)
    subjects = draw(st.one_of(st.just(b"s"), BLOCKS, many))
    content = columns(subjects, draw(many), draw(st.one_of(st.none(), many)))
    stamps = st.lists(st.integers(0, 9), min_size=count, max_size=count).map(sorted)
    return Asked(
        draw(st.sampled_from([Kind.BATCH] * 7 + [Kind.LINK, Kind.DELETE])),
        draw(st.sampled_from([0, 0, 0, 1])),
        draw(st.sampled_from([0, 0, 0, 0, 2])),
        draw(st.integers(3, 4)),
        content,
        draw(st.one_of(st.none(), stamps)),
    )


TYPED = st.just(Asked(Kind.BATCH, 0, 0, 3, pa.record_batch({"n": [1, 2]})))
MIXES = st.lists(st.one_of(raw(), raw(), raw(), TYPED), max_size=30)
LIMITS = st.tuples(st.sampled_from([0, 1, 8]), st.sampled_from([30, 90, 32 << 10]))
"""Few frames, small bodies."""


def limited(limits: tuple[int, int]) -> AbstractContextManager[object]:
    few, small = limits
    return mock.patch.multiple(frame_groups, FEW_FRAMES=few, SMALL_BODY_BYTES=small)


@pytest.mark.feature("T09")
@given(MIXES, LIMITS)
def test_any_mix_of_frames_has_the_messages_of_its_frames(
    asked: list[Asked], limits: tuple[int, int]
) -> None:
    written = write(asked)
    with limited(limits):
        found = decode(written.stretch(Kind.BATCH))
    for partition in (0, 1):
        mine = [batch for batch in written.one_by_one() if batch.partition == partition]
        assert rows(batch for batch in found if batch.partition == partition) == rows(mine)


@given(st.lists(raw(), min_size=2, max_size=30))
def test_consecutive_frames_are_one_batch(asked: list[Asked]) -> None:
    follow = [one._replace(kind=Kind.BATCH, partition=0, skipped=0) for one in asked]
    written = write(follow)
    with mock.patch.multiple(frame_groups, FEW_FRAMES=1, GROWTH_MAX=100):
        found = decode(written.stretch(Kind.BATCH))
    assert found == [concat(written.one_by_one())]


@given(MIXES, LIMITS, st.integers(0, 2))
def test_groups_are_the_batches_of_a_partition_and_the_links_in_order(
    asked: list[Asked], limits: tuple[int, int], partition: int
) -> None:
    written = write(asked)
    wanted = [
        frame
        for frame in written.frames
        if frame.header.kind == Kind.LINK
        or (frame.header.kind == Kind.BATCH and frame.header.partition == partition)
    ]
    with limited(limits):
        found = list(groups(written.data, [f.position for f in written.frames], partition))
        read = [group.batches() for group in found if group.header.kind == Kind.BATCH]
    assert [g.position for g in found if g.header.kind == Kind.LINK] == [
        frame.position for frame in wanted if frame.header.kind == Kind.LINK
    ]
    for group in found:
        frames = [f for f in wanted if f.position == group.position]
        assert [frame.header for frame in frames] == [group.header]
        start = group.position + 64
        assert group.body == written.data[start : start + group.header.body_bytes]
    batch_groups = [group for group in found if group.header.kind == Kind.BATCH]
    for group, its in zip(batch_groups, read, strict=True):
        assert (group.header.first_offset, group.next_offset) == (
            its[0].first_offset,
            its[-1].next_offset,
        )
    mine = [batch for batch in written.one_by_one() if batch.partition == partition]
    assert rows(batch for its in read for batch in its) == rows(mine)


def test_many_small_frames_are_one_batch_and_large_frames_are_not_copied() -> None:
    small, large = [message(b"%d" % n) for n in range(20)], message(bytes(40_000))
    written = write([large._replace(partition=1), *small, large, large, *small])
    found = decode(written.stretch(Kind.BATCH))
    assert [batch.count for batch in found] == [20, 1, 1, 20, 1]
    start = pa.py_buffer(written.data).address
    inside = [
        start <= batch.content.payload.buffers()[2].address < start + len(written.data)
        for batch in found
        if isinstance(batch.content, Columns)
    ]
    assert inside == [False, True, True, False, True]


def test_few_frames_are_a_batch_each() -> None:
    written = write([message(b"a"), message(b"b")])
    assert decode(written.stretch(Kind.BATCH)) == written.one_by_one()
    assert decode(written.stretch(Kind.DELETE)) == []


def test_no_batch_crosses_a_gap_or_a_partition() -> None:
    run = [message(b"x") for _ in range(10)]
    other = [one._replace(partition=1) for one in run]
    other[0] = other[0]._replace(skipped=24)
    alternating = [one for pair in zip(run, other, strict=True) for one in pair]
    written = write([*alternating, run[0]._replace(skipped=3), *run])
    found = decode(written.stretch(Kind.BATCH))
    described = [(b.partition, b.first_offset, b.next_offset) for b in found]
    assert described == [(0, 0, 10), (0, 13, 24), (1, 24, 34)]


def test_a_shared_subject_and_timestamp_are_stored_once() -> None:
    (batch,) = decode(write([message(b"x")] * 20).stretch(Kind.BATCH))
    assert isinstance(batch.content, Columns)
    assert batch.content.subject == b"s"
    assert (batch.content.headers, batch.timestamps) == (None, None)


def test_frames_whose_subjects_would_grow_too_much_are_not_joined() -> None:
    def frame(subject: bytes) -> Asked:
        return Asked(Kind.BATCH, 0, 0, 5, columns(subject, [b""] * 50))

    shared = write([frame(b"s" * 100)] * 20)
    assert len(decode(shared.stretch(Kind.BATCH))) == 1
    different = write([frame(b"%100d" % n) for n in range(20)])
    assert decode(different.stretch(Kind.BATCH)) == different.one_by_one()
    alone = write([message(b"", b"%100d" % n) for n in range(20)])
    assert len(decode(alone.stretch(Kind.BATCH))) == 1


# -- bodies that are not what they should be, among others that are


def with_body(header: FrameHeader, body: bytes, place: int) -> Frames:
    """Twenty frames of one message each, with this one in the middle."""
    data, positions = bytearray(), []
    codec, flags, pieces = batches.encode(columns(b"s", [b"good"]), None)
    size = sum(map(len, pieces))
    for number in range(20):
        positions.append(len(data))
        fields = FrameHeader(MARK, size, 1, codec, flags, 0, number, 0, 0, number, 5, 1)
        if number == place:
            fields = header._replace(first_offset=number, body_bytes=len(body))
            data += b"".join(encode_frame(fields, [body]))
        else:
            data += b"".join(encode_frame(fields, pieces))
    return Frames.at(bytes(data), positions)


def fields(flags: int, entries: int, codec: int = Codec.PACKED) -> FrameHeader:
    return FrameHeader(MARK, 0, Kind.BATCH, codec, flags, 0, 0, 0, 0, 0, 5, entries)


def offsets(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


@pytest.mark.parametrize("place", [0, 10, 19])
@pytest.mark.parametrize(
    ("header", "body"),
    [
        (fields(Flag.SAME_SUBJECT, 1), offsets(0, 1, 0)),
        (fields(Flag.SAME_SUBJECT, 1 << 31), offsets(0, 1, 0, 1) + b"sp"),
        (fields(Flag.TIMESTAMPS, (1 << 32) - 1), offsets(0, 1, 0, 1) + b"sp"),
        (fields(Flag.SAME_SUBJECT, 1), offsets(0, 1, 0, 9) + b"sp"),
        (fields(Flag.SAME_SUBJECT, 1), offsets(0, (1 << 32) - 1, 0, 3) + b"sp"),
        (fields(Flag.SAME_SUBJECT, 1), offsets(0, 1, 0, 1) + b"spp"),
        (fields(Flag.HEADERS, 1), offsets(0, 1, 0, 3, 0, 1) + b"shp"),
        (fields(Flag.SAME_SUBJECT, 1, codec=9), offsets(0, 1, 0, 1) + b"sp"),
    ],
)
def test_an_invalid_frame_is_refused_among_others_too(
    header: FrameHeader, body: bytes, place: int
) -> None:
    with pytest.raises(FormatError) as alone:
        batches.decode(
            header._replace(body_bytes=len(body)), pa.py_buffer(bytes(64) + body), position=0
        )
    with pytest.raises(FormatError) as among:
        decode(with_body(header, body, place))
    assert str(among.value) == str(alone.value)


def test_columns_that_do_not_begin_at_zero_are_read_as_they_are() -> None:
    body = offsets(0, 1, 1, 3) + b"s" + b"abc"
    content, _ = packed.decode(Flag.SAME_SUBJECT, 1, pa.py_buffer(body))
    assert content.payload.to_pylist() == [b"bc"]
    found = decode(with_body(fields(Flag.SAME_SUBJECT, 1), body, 10))
    payloads = [row[-1] for row in rows(found)]
    assert payloads == [b"good"] * 10 + [b"bc"] + [b"good"] * 9


FIELDS = [frame.header for frame in golden.FRAMES]


def together() -> tuple[bytes, list[int]]:
    """The golden frames in a row, with a few other bytes at the end."""
    data, positions = b"", []
    for frame in golden.FRAMES:
        positions.append(len(data))
        data += frame.data
    return data + b"end", positions


def test_the_headers_are_columns_of_the_same_numbers() -> None:
    frames = Frames.at(*together())
    assert HEADER.names == (*FrameHeader._fields, "crc32c")
    assert [FrameHeader(*row[:-1]) for row in frames.headers.tolist()] == FIELDS
    assert [row[-1].to_bytes(4, "little") for row in frames.headers.tolist()] == [
        frame.data[60:64] for frame in golden.FRAMES
    ]
    assert frames.kinds.tolist() == [header.kind for header in FIELDS]
    assert frames.partitions.tolist() == [header.partition for header in FIELDS]
    assert frames.first_offsets.tolist() == [header.first_offset for header in FIELDS]
    assert frames.next_offsets.tolist() == [header.next_offset for header in FIELDS]
    assert frames.frame_bytes.tolist() == [len(frame.data) for frame in golden.FRAMES]
    assert frames.ends.tolist() == [*frames.positions.tolist()[1:], len(together()[0]) - 3]


def test_the_largest_numbers_are_kept() -> None:
    most = FrameHeader(
        *(2**32 - 1, 0, 255, 255, 2**16 - 1, 2**32 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1),
        *(2**62, 2**63 - 1, 2**32 - 1),
    )
    frames = Frames.at(bytes(encode_frame(most, [])[0]), [0])
    assert FrameHeader(*frames.headers.tolist()[0][:-1]) == most
    assert frames.next_offsets.tolist() == [most.next_offset]
    longest = most._replace(body_bytes=2**32 - 1)
    frames = Frames.at(bytes(encode_frame(longest, [])[0]), [0])
    assert frames.frame_bytes.tolist() == [longest.frame_bytes]


def test_a_row_is_a_frame() -> None:
    frames = Frames.at(*together())
    assert [frames.header(row) for row in range(len(frames))] == FIELDS
    assert [bytes(frames.body(row)) for row in range(len(frames))] == [
        b"".join(frame.pieces) for frame in golden.FRAMES
    ]
    part = frames[2:4]
    assert [part.header(row) for row in range(len(part))] == FIELDS[2:4]
    assert part.body(0) == frames.body(2)
    assert len(frames[frames.kinds == 99]) == 0


def test_frames_apart_are_alone_between_the_others() -> None:
    frames = Frames.at(*together())[:6]
    for numbers, expected in (
        ((), [[0, 1, 2, 3, 4, 5]]),
        ((0, 5), [[0], [1, 2, 3, 4], [5]]),
        ((2, 3), [[0, 1], [2], [3], [4, 5]]),
        (range(6), [[0], [1], [2], [3], [4], [5]]),
    ):
        rows = frames.positions * 0 != 0
        rows[list(numbers)] = True
        places = frames.positions.tolist()
        parts = [part.positions.tolist() for part in frames.apart(rows)]
        assert parts == [[places[n] for n in part] for part in expected]
