from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from penstock.client import BrokerRefused, BrokerReply, get_topic
from penstock.formats import arrow_stream
from penstock.formats.plan_api import StoreReply
from penstock.model import names
from penstock.model.batch import ENVELOPE
from penstock.spark import columns, planning, slices
from penstock.spark.buckets import SparkBucket
from penstock.spark.errors import DataLost, DataUnread
from penstock.spark.slice_reader import SliceReader
from penstock.spark.slices import FetchSlice, ObjectSlice, Slice, SliceSpan
from tests.unit.client.served import Server, serving
from tests.unit.spark.plans import partition, plan, topic

TOPIC = names.topic("t")
ALL = columns.arrow_schema(topic())


def rows(partitions: list[int], offsets: list[int]) -> pa.Table:
    count = len(offsets)
    return pa.table(
        {
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([5] * count, pa.timestamp("us", tz="UTC")),
            "subject": ["s"] * count,
            "headers": pa.nulls(count, pa.binary()),
            "payload": [b"%d" % offset for offset in offsets],
        }
    )


def reader(tmp_path: Path, broker: str = "http://127.0.0.1:1", **facts: Any) -> SliceReader:
    bucket = SparkBucket(StoreReply("fs", str(tmp_path)), {})
    return SliceReader(
        TOPIC, broker, bucket, facts.pop("columns", ALL), {0: None, 1: None}, **facts
    )


def offsets(read: SliceReader, *pieces: Slice) -> list[tuple[int, int]]:
    batches = list(read.batches(pieces))
    assert all(batch.schema == read.columns for batch in batches)
    table = pa.Table.from_batches(batches, read.columns)
    return list(
        zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True)
    )


def test_only_live_rows_are_read(tmp_path: Path) -> None:
    table = rows([0] * 50 + [1] * 50, [*range(50), *range(50)])
    pq.write_table(table, tmp_path / "a", row_group_size=20)
    dead = ((0, BitMap64([10, 11]).serialize()),)
    spans = (SliceSpan(0, 8, 14), SliceSpan(1, 49, 50))
    piece = ObjectSlice("a", 0, False, 5, spans, whole=False, deleted=dead)
    assert offsets(reader(tmp_path), piece) == [(0, 8), (0, 9), (0, 12), (0, 13), (1, 49)]
    whole = ObjectSlice("a", 0, False, 5, (SliceSpan(0, 0, 50), SliceSpan(1, 0, 50)), whole=True)
    assert len(offsets(reader(tmp_path), whole)) == 100
    few = pa.schema([ALL.field("payload")])
    found = pa.Table.from_batches(reader(tmp_path, columns=few).batches([piece]))
    assert found.column("payload").to_pylist() == [b"8", b"9", b"12", b"13", b"49"]


def test_rows_of_linked_objects_have_offsets_and_the_topic_s_subject(tmp_path: Path) -> None:
    payloads = pa.table({"payload": [b"%d" % n for n in range(10)]})
    pq.write_table(payloads, tmp_path / "l", row_group_size=4)
    dead = ((0, BitMap64([105]).serialize()),)
    piece = ObjectSlice("l", 0, True, 77, (SliceSpan(0, 103, 108, 100),), whole=False, deleted=dead)
    table = pa.Table.from_batches(reader(tmp_path).batches([piece]))
    assert table.column("offset").to_pylist() == [103, 104, 106, 107]
    assert table.column("payload").to_pylist() == [b"3", b"4", b"6", b"7"]
    assert set(table.column("subject").to_pylist()) == {"t"}
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [77] * 4
    only = pa.schema([ALL.field("offset")])
    found = pa.Table.from_batches(reader(tmp_path, columns=only).batches([piece]))
    assert found.column("offset").to_pylist() == [103, 104, 106, 107]


def test_a_null_payload_of_a_linked_object_is_read_as_empty(tmp_path: Path) -> None:
    pq.write_table(pa.table({"payload": pa.array([b"a", None], pa.binary())}), tmp_path / "l")
    piece = ObjectSlice("l", 0, True, 77, (SliceSpan(0, 5, 7, 5),), whole=True)
    strict = columns.strict_schema(topic())
    table = pa.Table.from_batches(reader(tmp_path, columns=strict).batches([piece]))
    assert table.schema == strict
    assert table.column("payload").to_pylist() == [b"a", b""]


def test_unexpected_nulls_are_an_error(tmp_path: Path) -> None:
    table = rows([0, 0], [0, 1]).set_column(3, "subject", pa.array(["s", None]))
    pq.write_table(table, tmp_path / "a")
    piece = ObjectSlice("a", 0, False, 5, (SliceSpan(0, 0, 2),), whole=True)
    assert offsets(reader(tmp_path), piece) == [(0, 0), (0, 1)]
    with pytest.raises(DataUnread, match=r"topic .*: column 'subject' has nulls"):
        offsets(reader(tmp_path, columns=columns.strict_schema(topic())), piece)


def test_all_parts_of_an_object_make_up_the_object(tmp_path: Path) -> None:
    pq.write_table(rows([0] * 100, list(range(100))), tmp_path / "a", row_group_size=30)
    whole: Slice = ObjectSlice("a", 0, False, 5, (SliceSpan(0, 0, 100),), whole=True)
    for tasks in (2, 3, 7):
        parts = slices.divide_into_tasks([whole], tasks)
        found = [place for task in parts for place in offsets(reader(tmp_path), *task)]
        assert found == [(0, n) for n in range(100)]


def test_missing_rows_of_an_object_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(rows([0] * 9, list(range(9))), tmp_path / "a")
    piece = ObjectSlice("a", 0, False, 5, (SliceSpan(0, 0, 9),), whole=True)
    read = pq.ParquetFile.iter_batches
    short = lambda file, *told, **more: (b.slice(2) for b in read(file, *told, **more))  # noqa: E731
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", short)
    with pytest.raises(DataUnread, match="object a: 2 rows are missing"):
        list(reader(tmp_path).batches([piece]))


def test_the_error_of_a_damaged_object_names_it(tmp_path: Path) -> None:
    pq.write_table(rows([0], [0]), tmp_path / "a", write_page_checksum=True)
    data = bytearray((tmp_path / "a").read_bytes())
    data[40] ^= 255
    (tmp_path / "a").write_bytes(data)
    piece = ObjectSlice("a", len(data), False, 5, (SliceSpan(0, 0, 1),), whole=True)
    with pytest.raises(DataUnread, match="object a: "):
        list(reader(tmp_path).batches([piece]))


def answer(offsets_: list[int]) -> bytes:
    """A reply to a fetch."""
    told = {"topic": "t", "partition_value": None, "start_offset": 0, "end_offset": 0}
    told["start_offset"], told["end_offset"] = (offsets_[0], offsets_[-1]) if offsets_ else (0, 0)
    table = rows([0] * len(offsets_), offsets_).cast(
        pa.schema([f.with_nullable(True) for f in ENVELOPE])
    )
    note = msgspec.json.encode({"_tag": "success", **told})
    return arrow_stream.write(ENVELOPE, table.cast(ENVELOPE).to_batches(), note)


class Script:
    """Replies to fetches in order, and to plans with a partition."""

    def __init__(self, server: Server, *answers: bytes, **facts: Any) -> None:
        made = plan([partition(**facts)])
        page = {"topic": made.topic, "store": None, "partitions": made.partitions, "objects": []}
        self._plan = msgspec.json.encode(page)
        self._answers = list(answers)
        self._server = server

    def __call__(self, path: str) -> bytes:
        return self._plan if "/plan" in path else self._answers.pop(0)


def play(monkeypatch: pytest.MonkeyPatch, *answers: bytes, **facts: Any) -> None:
    """Read a slice from a scripted broker."""
    script = Script(Server(), *answers, **facts)

    def ask_once(broker: str, conversation: Any) -> Any:
        request = next(conversation)
        while True:
            try:
                request = conversation.send(reading_reply(script(request.path)))
            except StopIteration as end:
                return end.value

    monkeypatch.setattr(planning, "ask_once", ask_once)


def reading_reply(body: bytes) -> Any:
    return BrokerReply(200, body)


GONE = arrow_stream.write(
    pa.schema([]),
    [],
    msgspec.json.encode({"_tag": "error", "message": "purged", "code": "offset_gone"}),
)


def test_fetches_continue_to_the_end_of_the_slice_and_not_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, answer([0, 1, 2]), answer([5, 6, 7, 8]), next_=9)
    assert offsets(reader(tmp_path), FetchSlice(0, None, 0, 7)) == [(0, n) for n in (0, 1, 2, 5, 6)]


def test_offsets_that_have_no_message_end_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, answer([0, 1]), answer([]), next_=6, deleted=[2, 3, 4, 5])
    assert offsets(reader(tmp_path), FetchSlice(0, None, 0, 6)) == [(0, 0), (0, 1)]


def test_fetches_from_a_slow_broker_are_repeated_a_limited_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, answer([]), answer([0, 1]), next_=2)
    assert offsets(reader(tmp_path), FetchSlice(0, None, 0, 2)) == [(0, 0), (0, 1)]
    play(monkeypatch, *[answer([])] * planning.ATTEMPTS_MAX, next_=2)
    with pytest.raises(DataUnread, match="from 0 on are committed"):
        offsets(reader(tmp_path), FetchSlice(0, None, 0, 2))


def test_messages_deleted_by_retention_fail_or_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, GONE, start=5, next_=8)
    with pytest.raises(DataLost, match="offsets 0 to 4 are gone"):
        offsets(reader(tmp_path), FetchSlice(0, None, 0, 8))
    play(monkeypatch, GONE, answer([5, 6, 7]), start=5, next_=8)
    lenient = reader(tmp_path, fail_on_data_loss=False)
    assert offsets(lenient, FetchSlice(0, None, 0, 8)) == [(0, 5), (0, 6), (0, 7)]


def test_messages_of_a_missing_object_are_fetched_from_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, answer([3, 4]), next_=9)
    piece = ObjectSlice("gone", 9, False, 5, (SliceSpan(0, 3, 5),), whole=True)
    assert offsets(reader(tmp_path), piece) == [(0, 3), (0, 4)]


def test_requests_to_a_busy_broker_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        server.status, server.body = 503, b'{"message": "not now"}'
        with pytest.raises(BrokerRefused, match="not now"):
            planning.ask_broker(server.url, lambda: get_topic(TOPIC), retry_seconds=0)
        assert len(server.seen) == planning.ATTEMPTS_MAX
        server.status = 404
        with pytest.raises(BrokerRefused, match="not now"):
            planning.ask_broker(server.url, lambda: get_topic(TOPIC), retry_seconds=0)
        assert len(server.seen) == planning.ATTEMPTS_MAX + 1
