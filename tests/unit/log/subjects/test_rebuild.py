"""Subjects of messages that have left the WAL come back from objects."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import pytest_asyncio

from penstock.host.child import Child
from penstock.log.subjects import rebuild
from penstock.log.subjects import spans as spans_module
from penstock.log.subjects.merge import FAN_IN
from penstock.log.subjects.rebuild import MissingSpan, Recalled, find_missing_span, recall
from penstock.log.subjects.span import SpanName
from penstock.model.errors import IndexUnavailable
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId, PartitionRange
from penstock.objects import StoreUnavailable
from tests.unit.log.messages import eventually
from tests.unit.log.subjects.subject_topic import TOPIC_SUBJECT, Topic
from tests.unit.log.subjects.test_spans import InlineChild

PARTITIONS = (0, 1)
ROOM = 16
FILTERS = (b"a", b"b.2", b"b.*", b"c.>", b"none", b">", TOPIC_SUBJECT)


class Bucket:
    """The messages of a topic as objects would have them; the WAL begins at a file."""

    def __init__(self, topic: Topic, sequence: int, starts: dict[int, int]) -> None:
        self._topic, self._sequence, self._starts = topic, sequence, starts
        self.asked: list[tuple[int, int]] = []
        self.away = False

    def first_sequence(self) -> int:
        return self._sequence

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(partition) for partition in PARTITIONS]

    def start(self, partition: PartitionId) -> Offset:
        return Offset(self._starts.get(partition, 0))

    async def subjects(self, partition: int, first: int, stop: int) -> Recalled:
        self.asked.append((partition, first))
        if self.away:
            raise StoreUnavailable("key", "out")
        next_ = min(first + 7, stop)
        names = self._topic.truth[partition][first:next_]
        return Recalled(next_, np.arange(first, next_), pa.array(names, pa.binary()))


@pytest_asyncio.fixture
async def topic(tmp_path: Path) -> AsyncIterator[Topic]:
    made = Topic(tmp_path / "topic", InlineChild())
    yield made
    await made.index.close()


def write(topic: Topic, files: int) -> list[dict[int, int]]:
    """Sealed files of a few messages in two partitions; where each of them began."""
    chance, starts = random.Random(5), []
    for _ in range(files):
        starts.append(dict(topic.state.nexts))
        for _ in range(4):
            names = [chance.choice([b"a", b"b.1", b"b.2", b"c.d.e"]) for _ in range(9)]
            topic.append(chance.choice(PARTITIONS), names)
        topic.append(1, 3)
        topic.seal()
    return starts


def lose_wal(topic: Topic, count: int) -> None:
    for file in topic.files[:count]:
        file.path.unlink()


async def restart(topic: Topic) -> None:
    """With the files that are there."""
    files = topic.files
    topic.files = [file for file in files if file.path.exists()]
    await topic.restart()
    topic.files = files


async def successor(topic: Topic, directory: Path, retry_seconds: float = 0.01) -> Topic:
    """The topic on another machine, whose disk has none of its messages."""
    other = Topic(directory, topic.child, retry_seconds)
    other.truth, other.state = topic.truth, topic.state
    await other.restart()
    return other


def ends_of(topic: Topic) -> dict[int, int]:
    return {p: len(topic.truth[p]) for p in PARTITIONS}


async def check(topic: Topic) -> None:
    for partition in PARTITIONS:
        for text in FILTERS:
            for start in (0, 20, 60):
                await topic.check(partition, text, start, 70, 5)


def spans_of(topic: Topic) -> list[Path]:
    return sorted(topic.directory.glob("subjects-*.sqlite"))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100:] = bytes(len(data) - 100)
    path.write_bytes(data)


@pytest.mark.feature("T36")
async def test_nothing_is_missing_where_every_file_has_its_span(topic: Topic) -> None:
    starts = write(topic, 3)
    await topic.index.settled()
    lose_wal(topic, 2)
    bucket = Bucket(topic, topic.files[2].sequence, starts[2])
    topic.index.recall(bucket)
    await check(topic)
    assert bucket.asked == []


@pytest.mark.feature("T36")
@pytest.mark.parametrize("lost", [0, 3, 5])
async def test_a_damaged_span_without_its_file_is_rebuilt_from_objects(
    topic: Topic, lost: int
) -> None:
    starts = write(topic, 7)
    await topic.index.settled()
    lose_wal(topic, 6)
    await restart(topic)
    bucket = Bucket(topic, topic.files[6].sequence, starts[6])
    topic.index.recall(bucket)
    damage(spans_of(topic)[lost])
    await check(topic)
    first = {p: starts[lost].get(p, 0) for p in PARTITIONS}
    assert {(p, offset) for p, offset in bucket.asked if offset == first[p]}
    assert all(offset < starts[lost + 1][p] for p, offset in bucket.asked)
    await restart(topic)
    topic.index.recall(bucket)
    asked = len(bucket.asked)
    await check(topic)
    assert len(bucket.asked) == asked, "it is on disk again"


@pytest.mark.feature("T36")
async def test_a_span_lost_between_two_starts_is_rebuilt_from_objects(topic: Topic) -> None:
    starts = write(topic, FAN_IN + 3)
    await topic.index.settled()
    lose_wal(topic, FAN_IN + 2)
    # Eight of them are one by now.
    assert len(spans_of(topic)) == 4
    await topic.index.close()
    damage(spans_of(topic)[0])
    await restart(topic)
    bucket = Bucket(topic, topic.files[-1].sequence, starts[-1])
    topic.index.recall(bucket)
    await check(topic)
    assert bucket.asked


@pytest.mark.feature("T36")
async def test_spans_are_not_merged_over_a_lost_one_before_objects_are_known(
    topic: Topic,
) -> None:
    starts = write(topic, FAN_IN - 1)
    await topic.index.settled()
    lose_wal(topic, FAN_IN - 1)
    await topic.index.close()
    spans_of(topic)[3].unlink()
    await restart(topic)
    starts += write(topic, 3)
    await topic.index.settled()
    assert len(spans_of(topic)) == FAN_IN + 1
    sequence = topic.files[FAN_IN - 1].sequence
    topic.index.recall(Bucket(topic, sequence, starts[FAN_IN - 1]))
    await check(topic)


@pytest.mark.feature("T36")
async def test_subjects_after_a_takeover_are_read_a_few_rows_at_a_time(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "SPAN_ROWS", 20)
    write(topic, 4)
    topic.delete(0, range(10, 30))
    topic.purge(1, 5)
    other = await successor(topic, tmp_path / "other")
    ends = ends_of(topic)
    other.append(0, [b"a", b"b.2"])
    bucket = Bucket(other, ROOM, ends)
    filled: list[MissingSpan] = []

    async def counting(
        missing: MissingSpan, objects: rebuild.Objects
    ) -> tuple[dict[int, list[Recalled]], bool]:
        filled.append(missing)
        return await recall(missing, objects)

    monkeypatch.setattr(spans_module, "recall", counting)
    other.index.recall(bucket)
    await check(other)
    await other.index.settled()
    assert len(filled) > 3
    name = SpanName.parse(spans_of(other)[-1].name)
    assert name is not None
    assert name.last == ROOM - 1
    asked = len(bucket.asked)
    await other.restart()
    other.index.recall(bucket)
    await check(other)
    assert len(bucket.asked) == asked
    await other.index.close()


@pytest.mark.feature("T36")
async def test_a_start_continues_where_the_last_one_stopped_recalling(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "SPAN_ROWS", 20)
    write(topic, 4)
    other = await successor(topic, tmp_path / "other", retry_seconds=60)
    bucket = Bucket(other, ROOM, ends_of(topic))

    class Failing(Bucket):
        async def subjects(self, partition: int, first: int, stop: int) -> Recalled:
            self.away = len(self.asked) > 7
            return await super().subjects(partition, first, stop)

    failing = Failing(other, ROOM, bucket._starts)
    other.index.recall(failing)
    with pytest.raises(IndexUnavailable, match="out"):
        await other.index.last(PartitionId(0), Filter.parse(b"a"))
    made = spans_of(other)
    assert made
    await other.restart()
    other.index.recall(bucket)
    await check(other)
    assert min(bucket.asked) > min(failing.asked)
    await other.index.close()


@pytest.mark.feature("T36")
async def test_queries_fail_while_objects_are_unavailable_and_succeed_afterwards(
    topic: Topic, tmp_path: Path
) -> None:
    write(topic, 3)
    other = await successor(topic, tmp_path / "other")
    bucket = Bucket(other, ROOM, ends_of(topic))
    bucket.away = True
    other.index.recall(bucket)
    with pytest.raises(IndexUnavailable):
        await other.index.count(PartitionId(0), Filter.parse(b"b.*"), Offset(0), Offset(99))
    assert other.index.peek_last(PartitionId(0), b"a") is not None, "memory alone cannot tell"
    bucket.away = False
    await eventually(lambda: other.index._spans.complete)
    await check(other)
    await other.index.close()


async def test_a_real_child_makes_the_same_span(tmp_path: Path) -> None:
    child = Child()
    topic = Topic(tmp_path / "topic", child)
    write(topic, 2)
    other = await successor(topic, tmp_path / "other")
    other.index.recall(Bucket(other, ROOM, ends_of(topic)))
    await check(other)
    await topic.index.close()
    await other.index.close()
    await child.close()


async def test_a_hole_of_one_number_is_recalled_whole_and_a_large_one_in_parts(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "SPAN_ROWS", 10)
    write(topic, 3)
    bucket = Bucket(topic, ROOM, {})
    extents = [PartitionRange(0, 3, 30), PartitionRange(1, 0, 20)]
    for last, rows, whole in ((5, 47, True), (6, 27, False), (30, 14, False)):
        found, all_of_it = await recall(MissingSpan(5, last, extents), bucket)
        assert (sum(len(r.offsets) for parts in found.values() for r in parts), all_of_it) == (
            rows,
            whole,
        )


async def test_without_spans_everything_before_the_wal_is_missing_that_is_live(
    topic: Topic,
) -> None:
    write(topic, 3)
    ends = {p: len(topic.truth[p]) for p in PARTITIONS}
    bucket = Bucket(topic, ROOM, ends)
    topic.purge(0, 4)
    assert find_missing_span([], topic.state, bucket) == MissingSpan(
        0, ROOM - 1, [PartitionRange(0, 4, ends[0]), PartitionRange(1, 0, ends[1])]
    )
    topic.purge(1, ends[1])
    topic.delete(0, range(4, ends[0]))
    assert find_missing_span([], topic.state, bucket) is None
    assert find_missing_span([], topic.state, Bucket(topic, 0, ends)) is None
