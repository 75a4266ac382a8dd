import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import batches
from penstock.formats.frames import Codec, Flag, FrameHeader, Kind, body_intact, decode_frame_header
from penstock.log.append.group import JOINED_RUN_BYTES_MAX, Group, Record, seal
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import RunInvalid
from penstock.model.limits import RUN_MESSAGES_MAX
from penstock.model.run import ColumnRun, EncodedRows, Run
from penstock.model.units import Microseconds, Offset, PartitionId
from tests.unit.log.messages import Message, in_batch, stamps_in

P0, P1 = PartitionId(0), PartitionId(1)
NOW = Microseconds(1000)
NEVER = Microseconds(0)


def run(*payloads: bytes, partition: int = 0, subject: bytes = b"s") -> Run:
    return Run(subject, list(payloads), partition=PartitionId(partition))


def take(group: Group, appended: Run | ColumnRun, first: int, frame_bytes: int = 1 << 20) -> None:
    group.add(appended, Offset(first), appended.measure(), frame_bytes)


def shape(group: Group, now: Microseconds = NOW) -> list[tuple[int, int, int] | Kind]:
    """Partition, first offset and count of every batch, the kind of everything else."""
    return [
        (item.partition, item.first_offset, item.count) if isinstance(item, Batch) else item.kind
        for item in group.stamp(now, NEVER)
    ]


def test_runs_of_one_partition_become_one_batch_in_the_order_they_came() -> None:
    group = Group()
    take(group, run(b"a"), 5)
    take(group, run(b"x", partition=1), 0)
    take(group, run(b"b", b"c"), 6)
    first, second = group.stamp(NOW, NEVER)
    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    assert in_batch(first) == [Message(n + 5, b"s", b"", b"abc"[n : n + 1]) for n in range(3)]
    assert in_batch(second) == [Message(0, b"s", b"", b"x")]
    assert group.size_bytes == sum(map(len, (b"sa", b"sx", b"sbc")))


@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from([b"s", b"t"]), st.none()),
            st.lists(st.binary(max_size=3), min_size=1, max_size=4),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_joining_keeps_every_subject_header_and_payload_in_its_place(
    given_: list[tuple[bytes | None, list[bytes], bool]],
) -> None:
    group = Group()
    expected: list[Message] = []
    for number, (subject, payloads, with_headers) in enumerate(given_):
        subjects = [b"%d.%d" % (number, n) for n in range(len(payloads))]
        headers = [b"h%d" % n if n else b"" for n in range(len(payloads))]
        first = len(expected)
        expected += [
            Message(first + n, subject or subjects[n], headers[n] if with_headers else b"", payload)
            for n, payload in enumerate(payloads)
        ]
        appended = Run(subject or subjects, list(payloads), headers if with_headers else None)
        take(group, appended, first)
    joined = list(group.stamp(NOW, NEVER))
    assert len(joined) == 1
    assert isinstance(joined[0], Batch)
    assert in_batch(joined[0]) == expected


def test_tuples_are_taken_as_well_as_lists_and_not_changed() -> None:
    group = Group()
    payloads = (b"a", b"b")
    take(group, Run((b"s", b"t"), payloads, (b"", b"h")), 0)
    take(group, Run((b"u",), (b"c",)), 2)
    (batch,) = group.stamp(NOW, NEVER)
    assert isinstance(batch, Batch)
    assert in_batch(batch) == [
        Message(0, b"s", b"", b"a"),
        Message(1, b"t", b"h", b"b"),
        Message(2, b"u", b"", b"c"),
    ]
    assert payloads == (b"a", b"b")


def test_a_batch_is_not_joined_above_the_size_of_a_frame() -> None:
    group = Group()
    for first in range(4):
        take(group, run(b"12345"), first, frame_bytes=12)
    assert shape(group) == [(0, 0, 2), (0, 2, 2)]


def test_a_batch_is_not_joined_above_the_messages_of_a_run() -> None:
    group = Group()
    take(group, Run(b"s", [b""] * RUN_MESSAGES_MAX), 0)
    take(group, run(b""), RUN_MESSAGES_MAX)
    assert shape(group) == [(0, 0, RUN_MESSAGES_MAX), (0, RUN_MESSAGES_MAX, 1)]


def test_a_record_closes_the_batch_of_its_partition_only() -> None:
    group = Group()
    take(group, run(b"a"), 0)
    take(group, run(b"x", partition=1), 0)
    group.record(Record(Kind.DELETE, P0, Offset(1), 0, b"body"))
    take(group, run(b"b"), 1)
    take(group, run(b"y", partition=1), 1)
    assert shape(group) == [(0, 0, 1), (1, 0, 2), Kind.DELETE, (0, 1, 1)]


def test_a_link_closes_the_batches_of_every_partition_it_touches() -> None:
    group = Group()
    for partition in (0, 1, 2):
        take(group, run(b"a", partition=partition), 0)
    group.record(Record(Kind.LINK, P0, Offset(0), 9, b"body"), [1, 2])
    for partition in (0, 1, 2):
        take(group, run(b"b", partition=partition), 1 if not partition else 5)
    assert shape(group) == [(0, 0, 2), (1, 0, 1), (2, 0, 1), Kind.LINK, (1, 5, 1), (2, 5, 1)]


def test_columns_and_runs_with_timestamps_stay_apart_and_in_order() -> None:
    group = Group()
    take(group, run(b"a"), 0)
    take(group, ColumnRun(Columns(b"s", pa.array([b"b"], pa.binary()))), 1)
    take(group, Run(b"s", [b"c"], timestamps=[2000]), 2)
    take(group, run(b"d"), 3)
    take(group, ColumnRun(pa.record_batch({"n": [1, 2]})), 4)
    assert shape(group) == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1), (0, 4, 2)]


def numbers(*values: int) -> ColumnRun:
    return ColumnRun(pa.record_batch({"n": pa.array(values, pa.int64())}))


def test_small_runs_of_columns_become_one_batch_in_the_order_they_came() -> None:
    group = Group()
    take(group, numbers(1), 5)
    take(group, ColumnRun(numbers(7).content, P1), 0)
    take(group, numbers(2, 3), 6)
    first, second = group.stamp(NOW, NEVER)
    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    assert (first.first_offset, first.count) == (5, 3)
    assert first.content == pa.record_batch({"n": [1, 2, 3]})
    assert (second.partition, second.first_offset) == (1, 0)
    assert second.content == numbers(7).content


def test_small_raw_columns_become_one_batch_with_every_subject() -> None:
    group = Group()
    take(group, ColumnRun(Columns(b"s", pa.array([b"a"], pa.binary()))), 0)
    take(group, ColumnRun(Columns(b"t", pa.array([b"b", b"c"], pa.binary()))), 1)
    (batch,) = group.stamp(NOW, NEVER)
    assert isinstance(batch, Batch)
    assert in_batch(batch) == [
        Message(0, b"s", b"", b"a"),
        Message(1, b"t", b"", b"b"),
        Message(2, b"t", b"", b"c"),
    ]


def test_a_large_run_of_columns_is_not_copied_and_nothing_is_joined_to_it() -> None:
    group = Group()
    large = numbers(*range(JOINED_RUN_BYTES_MAX // 8 + 1))
    take(group, numbers(1), 0)
    take(group, large, 1)
    take(group, numbers(2), 1 + large.count)
    take(group, numbers(3), 2 + large.count)
    before, alone, after = group.stamp(NOW, NEVER)
    assert isinstance(alone, Batch)
    assert alone.content is large.content
    assert (before.count, after.count) == (1, 2)


def test_columns_are_joined_up_to_a_frame_and_to_the_messages_of_a_run() -> None:
    group = Group()
    for first in range(5):
        take(group, numbers(first), first, frame_bytes=16)
    assert shape(group) == [(0, 0, 2), (0, 2, 2), (0, 4, 1)]
    group = Group()
    flags = ColumnRun(pa.record_batch({"b": pa.array([True] * 1000)}))
    for number in range(RUN_MESSAGES_MAX // 1000 + 1):
        take(group, flags, 1000 * number)
    assert all(item.count <= RUN_MESSAGES_MAX for item in group.stamp(NOW, NEVER))
    assert len(shape(group)) == 2


def test_columns_of_another_kind_or_behind_a_record_are_not_joined() -> None:
    group = Group()
    take(group, numbers(1), 0)
    take(group, ColumnRun(pa.record_batch({"other": [1]})), 1)
    take(group, ColumnRun(pa.record_batch({"other": [2]})), 2)
    group.record(Record(Kind.DELETE, P0, Offset(3), 0, b"body"))
    take(group, ColumnRun(pa.record_batch({"other": [3]})), 3)
    assert shape(group) == [(0, 0, 1), (0, 1, 2), Kind.DELETE, (0, 3, 1)]


def test_a_body_that_is_known_is_used_only_for_a_run_alone_and_without_timestamps() -> None:
    known = EncodedRows([b"known"], None)
    stamps = pa.array([5], pa.int64())
    content = numbers(1).content
    group = Group()
    take(group, ColumnRun(content, P0, None, known), 0)
    take(group, ColumnRun(content, P1, stamps, known), 0)
    assert group.bodies == {0: known}
    take(group, ColumnRun(content, P0, None, known), 1)
    assert group.bodies == {}


def test_messages_without_timestamps_get_the_time_of_their_group() -> None:
    group = Group()
    take(group, run(b"a", b"b"), 0)
    (batch,) = group.stamp(NOW, NEVER)
    assert isinstance(batch, Batch)
    assert stamps_in(batch) == [1000, 1000]


def stamped(group: Group, now: int, floor: int) -> list[list[int]]:
    return [
        stamps_in(item)
        for item in group.stamp(Microseconds(now), Microseconds(floor))
        if isinstance(item, Batch)
    ]


def test_timestamps_of_their_own_are_kept_even_when_they_are_past() -> None:
    group = Group()
    take(group, Run(b"s", [b"a", b"b"], timestamps=[10, 20]), 0)
    take(group, run(b"c"), 2)
    assert stamped(group, now=1000, floor=5) == [[10, 20], [1000]]


def test_timestamps_never_decrease() -> None:
    group = Group()
    take(group, Run(b"s", [b"a", b"b", b"c"], timestamps=[10, 2000, 30]), 0)
    take(group, run(b"d"), 3)
    take(group, Run(b"s", [b"e"], timestamps=[20]), 4)
    group.record(Record(Kind.SETTLE, P0, Offset(0), 1, b"x"))
    assert stamped(group, now=1000, floor=15) == [[15, 2000, 2000], [2000], [2000]]
    record = list(group.stamp(Microseconds(1000), Microseconds(15)))[-1]
    assert isinstance(record, Record)
    assert record.timestamp == 2000


@given(
    st.lists(
        st.one_of(st.none(), st.lists(st.integers(0, 50), min_size=1, max_size=3)), max_size=6
    ),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_timestamps_of_a_log_never_decrease(
    runs: list[list[int] | None], now: int, floor: int
) -> None:
    group = Group()
    for number, stamps in enumerate(runs):
        count = len(stamps) if stamps else 1
        take(group, Run(b"s", [b""] * count, timestamps=stamps), 10 * number)
    result = [floor, *(stamp for batch in stamped(group, now, floor) for stamp in batch)]
    assert result == sorted(result)


def test_a_run_whose_timestamps_do_not_fit_is_refused_and_changes_nothing() -> None:
    group = Group()
    take(group, run(b"a"), 0)
    with pytest.raises(OverflowError):
        take(group, Run(b"s", [b"b"], timestamps=[1 << 70]), 1)
    take(group, run(b"c"), 1)
    assert (shape(group), group.size_bytes) == ([(0, 0, 2)], 4)


def frame_of(item: Batch | Record, encoded: EncodedRows | None = None) -> tuple[FrameHeader, bytes]:
    sealed = seal(item, encoded, mark=9, number=7, durable=6, epoch=3)
    data = b"".join(sealed.pieces)
    assert decode_frame_header(data, 0, 9) == sealed.header
    assert body_intact(data, 0, sealed.header)
    assert sealed.item is item
    return sealed.header, data


def test_a_batch_is_sealed_into_a_frame_that_is_read_back() -> None:
    group = Group()
    take(group, Run(b"s", [b"a", b"b"], [b"h", b""], P1, [2000, 2001]), 40)
    (batch,) = group.stamp(NOW, NEVER)
    assert isinstance(batch, Batch)
    header, data = frame_of(batch)
    flags = Flag.SAME_SUBJECT | Flag.HEADERS | Flag.TIMESTAMPS
    size = header.body_bytes
    assert header == FrameHeader(9, size, Kind.BATCH, Codec.PACKED, flags, 1, 7, 6, 3, 40, 2000, 2)
    again = batches.decode(header, pa.py_buffer(data), 0)
    assert in_batch(again) == in_batch(batch)
    assert stamps_in(again) == [2000, 2001]


@pytest.mark.parametrize("rows", [1, 20_000])
def test_an_encoded_body_gives_the_frame_that_the_rows_would_give(rows: int) -> None:
    content = pa.record_batch({"n": pa.array(range(rows), pa.int64())})
    batch = Batch(P1, Offset(40), rows, NOW, content)
    body = b"".join(batches.encode_rows(content))
    encoded = EncodedRows([body[:8], body[8:]], crc32c(body) if rows > 1 else None)
    assert frame_of(batch, encoded) == frame_of(batch)


@pytest.mark.parametrize("body", [b"", b"body"])
def test_a_record_is_sealed_into_a_frame_of_its_kind(body: bytes) -> None:
    record = Record(Kind.DELETE, P1, Offset(5), 0, body, Flag.CLOSE, NOW)
    header, data = frame_of(record)
    assert header == FrameHeader(
        9, len(body), Kind.DELETE, Codec.NATIVE, Flag.CLOSE, 1, 7, 6, 3, 5, 1000, 0
    )
    assert data[64 : 64 + len(body)] == body


@pytest.mark.parametrize(("partition", "count"), [(-1, 0), (1 << 31, 0), (0, -1), (0, 1 << 32)])
def test_a_record_that_does_not_fit_a_frame_is_refused(partition: int, count: int) -> None:
    with pytest.raises(RunInvalid):
        Record(Kind.SETTLE, PartitionId(partition), Offset(0), count, b"")
