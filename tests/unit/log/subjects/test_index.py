import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.host.child import Child
from penstock.log.subjects.index import NotInMemory
from penstock.model.subjects import Filter
from penstock.model.units import Offset, OffsetRange, PartitionId
from tests.unit.log.subjects.subject_topic import TOPIC_SUBJECT, Topic

ZERO = PartitionId(0)
ALL = [b">", b"*", b"a.b", b"a.*", b"a.>", b"*.b", b"a.*.c", b"orders", b"never", b"never.>"]


@pytest_asyncio.fixture
async def child() -> AsyncIterator[Child]:
    child = Child()
    yield child
    await child.close()


@pytest_asyncio.fixture
async def topic(tmp_path: Path, child: Child) -> AsyncIterator[Topic]:
    topic = Topic(tmp_path, child)
    yield topic
    await topic.index.close()


async def _check_all(topic: Topic, partition: int = 0) -> None:
    for text in ALL:
        await topic.check(partition, text, 1, 7, 3)


# -- every answer, whatever happened before


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shared_child(loop: asyncio.Runner) -> Iterator[Child]:
    async def make() -> Child:
        return Child()

    child = loop.run(make())
    yield child
    loop.run(child.close())


SUBJECT = st.sampled_from([b"a.b", b"a.c", b"a.b.c", b"a.x.c", b"b", b"orders", b"a.bb"])
PARTITION = st.sampled_from([0, 0, 0, 7])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), PARTITION, st.lists(SUBJECT, min_size=1, max_size=20)),
        st.tuples(st.just("append"), PARTITION, SUBJECT),
        st.tuples(st.just("append"), PARTITION, st.integers(1, 40)),
        st.tuples(st.just("delete"), PARTITION, st.lists(st.integers(0, 60), max_size=20)),
        st.tuples(st.just("delete last"), PARTITION, SUBJECT),
        st.tuples(st.just("purge"), PARTITION, st.integers(0, 60)),
        st.tuples(st.just("seal"), st.none(), st.none()),
        st.tuples(st.just("settle"), st.none(), st.none()),
        st.tuples(st.just("restart"), st.none(), st.none()),
        st.tuples(
            st.just("check"),
            PARTITION,
            st.tuples(
                st.sampled_from(ALL),
                st.integers(0, 60),
                st.integers(0, 99),
                st.integers(1, 9),
            ),
        ),
    ),
    min_size=10,
    max_size=40,
)
NUMBER = count()


async def _take(topic: Topic, action: str, partition: int, value: Any) -> None:
    if action == "append":
        topic.append(partition, value)
    elif action == "delete":
        topic.delete(partition, value)
    elif action == "delete last":
        topic.delete(partition, [offset for offset, _ in topic.live(partition, value)[-1:]])
    elif action == "purge":
        topic.purge(partition, value)
    elif action == "seal":
        topic.seal()
    elif action == "settle":
        topic.index.tidy()
        await topic.index.settled()
    elif action == "restart":
        await topic.restart()
    else:
        await topic.check(partition, *value)


@pytest.mark.feature("T35", "T36")
@settings(max_examples=60)
@given(steps=STEPS)
def test_every_query_agrees_with_a_scan_of_all_messages(
    steps: list[tuple[str, int, Any]],
    loop: asyncio.Runner,
    shared_child: Child,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async def example() -> None:
        topic = Topic(tmp_path_factory.getbasetemp() / f"topic-{next(NUMBER)}", shared_child)
        try:
            for action, partition, value in steps:
                await _take(topic, action, partition, value)
            for last in ("seal", "settle", "restart"):
                for partition in (0, 7):
                    await _check_all(topic, partition)
                    # What each place holds last and first is where deletions matter most.
                    for subject in set(topic.truth.get(partition, [])):
                        found = topic.live(partition, subject)
                        topic.delete(partition, [o for o, _ in (*found[:1], *found[-1:])])
                        await topic.check(partition, subject, 0, 99, 3)
                await _take(topic, last, 0, None)
        finally:
            await topic.index.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.log.subjects.merge.FAN_IN", 2)
        loop.run(example())


# -- restarts, damage, deaths


@pytest.mark.feature("T36")
async def test_a_restart_applies_only_the_files_that_are_new(topic: Topic) -> None:
    for _ in range(3):
        topic.append(0, [b"a.b", b"a.c"])
        topic.seal()
    await topic.index.settled()
    assert topic.index.applied == 3
    await topic.restart()
    await topic.index.settled()
    assert topic.index.applied == 0
    topic.append(0, b"a.b")
    topic.seal()
    await topic.restart()
    await _check_all(topic)
    assert topic.index.applied <= 1


@pytest.mark.feature("T36")
async def test_indexed_subjects_survive_the_removal_of_their_file(topic: Topic) -> None:
    for number in range(3):
        topic.append(0, [b"a.b", b"n.%d" % number])
        topic.seal()
    await topic.index.settled()
    assert topic.index.unapplied == set()
    for file in topic.files:
        file.path.unlink()
    topic.files = []
    await topic.restart()
    await _check_all(topic)


@pytest.mark.feature("T36")
async def test_a_start_makes_the_whole_index_from_files_alone_and_queries_wait_for_it(
    topic: Topic,
) -> None:
    for number in range(4):
        topic.append(0, [b"a.b", b"n.%d" % number])
        topic.seal()
    await topic.index.close()
    for path in topic.directory.glob("subjects-*"):
        path.unlink()
    await topic.restart()
    assert topic.index.peek_last(ZERO, b"n.0") is NotInMemory.MISS
    assert await topic.index.last(ZERO, Filter.parse(b"n.0")) == 1
    await _check_all(topic)
    assert topic.index.applied == 4


async def test_bytes_after_the_durable_end_of_a_file_are_not_indexed(topic: Topic) -> None:
    topic.append(0, [b"a.b", b"a.c"])
    file = topic.seal()
    topic.truth[0].append(b"a.d")
    topic.append(0, b"a.e")
    longer = topic.seal()
    topic.files = [file, longer._replace(end=200)]
    await topic.index.settled()
    for path in topic.directory.glob("subjects-*"):
        path.unlink()
    await topic.restart()
    assert await topic.index.last(ZERO, Filter.parse(b"a.*")) == 1


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"not a database" * 100, id="foreign"),
        pytest.param(lambda data: data[: len(data) // 2], id="cut"),
        pytest.param(lambda data: bytes(len(data)), id="zeroed"),
        pytest.param(lambda data: data[:8192] + b"\xff" * (len(data) - 8192), id="overwritten"),
    ],
)
@pytest.mark.feature("T36")
@pytest.mark.parametrize("restart", [True, False])
async def test_a_damaged_span_is_rebuilt(topic: Topic, damage: Any, restart: bool) -> None:
    for _ in range(2):
        topic.append(0, [b"a.b", b"a.c", b"b"])
        topic.seal()
    await topic.index.settled()
    path = sorted(topic.directory.glob("subjects-*.sqlite"))[0]
    path.write_bytes(damage(path.read_bytes()))
    if restart:
        await topic.restart()
    await _check_all(topic)
    await topic.index.settled()
    assert topic.index.applied == (1 if restart else 3)
    await _check_all(topic)


@pytest.mark.feature("T36")
async def test_killing_the_child_at_any_time_loses_nothing(topic: Topic) -> None:
    for number in range(12):
        topic.append(0, [b"a.b", b"a.c", b"n.%d" % number] * 50)
        topic.seal()
        await topic.check(0, b"a.*", 1, 500, 10)
        if topic.child.pid is not None:
            os.kill(topic.child.pid, signal.SIGKILL)
        await topic.check(0, b"n.*", 1, 500, 10)
    await topic.index.settled()
    assert topic.index.nbytes == 0
    await _check_all(topic)


async def test_a_removed_file_does_not_block_queries(topic: Topic) -> None:
    topic.append(0, [b"a.b"])
    topic.seal()
    await topic.index.close()
    for path in topic.directory.iterdir():
        path.unlink()
    await topic.restart()
    assert await topic.index.last(ZERO, Filter.parse(b"a.b")) is None


# -- memory


@pytest.mark.feature("T36")
async def test_memory_returns_to_nothing_when_the_subjects_are_on_disk(topic: Topic) -> None:
    for start in range(0, 300_000, 10_000):
        topic.append(0, [b"user.%07d.state" % n for n in range(start, start + 10_000)])
    before = topic.index.nbytes
    assert await topic.index.last(ZERO, Filter.parse(b"user.0123456.state")) == 123_456
    assert topic.index.nbytes > 2 * before > 10_000_000
    topic.seal()
    frozen = topic.index.nbytes
    assert frozen > 2 * before
    await topic.index.settled()
    assert topic.index.nbytes == 0
    for number in (0, 123_456, 299_999):
        subject = Filter.parse(b"user.%07d.state" % number)
        assert await topic.index.last(ZERO, subject) == number
        assert await topic.index.next(ZERO, subject, Offset(0)) == number
    assert await topic.index.count(ZERO, Filter.parse(b"user.*.state"), Offset(5), Offset(99)) == 94


async def test_rows_and_shared_subjects_cost_the_same_whatever_their_number(topic: Topic) -> None:
    topic.append(0, 10)
    for _ in range(1000):
        topic.append(0, 1000)
    assert topic.index.nbytes < 2000
    await topic.check(0, TOPIC_SUBJECT, 500_000, 500_500, 10)
    assert topic.index.nbytes < 10_000


async def test_rows_that_lie_in_objects_carry_the_subject_of_the_topic(topic: Topic) -> None:
    topic.append(0, [b"a.b"])
    topic.truth[0] += [TOPIC_SUBJECT] * 50
    topic.state.nexts[0] = 51
    topic.index.note_rows(ZERO, OffsetRange(Offset(1), Offset(51)))
    await _check_all(topic)


async def test_noted_subjects_can_be_forgotten(topic: Topic) -> None:
    topic.append(0, [b"a.b", b"a.c"])
    topic.index.forget()
    assert topic.index.nbytes == 0
    assert topic.index.peek_last(ZERO, b"a.b") is None


@pytest.mark.feature("T35", "T36")
async def test_a_key_value_topic_with_one_value_a_key_does_not_grow(topic: Topic) -> None:
    keys = [b"key.%d" % n for n in range(2000)]
    for round_ in range(10):
        topic.append(0, keys)
        topic.delete(0, range((round_ - 1) * 2000, round_ * 2000))
        topic.seal()
        await topic.index.settled()
    topic.index.tidy()
    await topic.index.settled()
    size = sum(path.stat().st_size for path in topic.directory.glob("subjects-*"))
    one = 2000 * 20
    assert size < 4 * one + 10 * 40_000
    assert await topic.index.count(ZERO, Filter.parse(b"key.*"), Offset(0), Offset(99_999)) == 2000
    assert await topic.index.last(ZERO, Filter.parse(b"key.7")) == 18_007


async def test_dropped_files_take_their_spans_along(topic: Topic) -> None:
    for _ in range(3):
        topic.append(0, [b"a.b", b"a.c"])
        topic.seal()
    await topic.index.settled()
    topic.purge(0, 4)
    topic.index.drop({1, 2})
    topic.files = topic.files[2:]
    await topic.index.settled()
    assert len(list(topic.directory.glob("subjects-*"))) == 1
    await _check_all(topic)
    await topic.restart()
    await _check_all(topic)


# -- memory only


async def test_a_peek_answers_from_memory_or_reports_a_miss(topic: Topic) -> None:
    assert topic.index.peek_last(ZERO, b"a.b") is None
    topic.append(0, [b"a.b", b"a.c", b"a.b"])
    assert topic.index.peek_last(ZERO, b"a.b") == 2
    assert topic.index.peek_last(ZERO, b"a.x") is None
    topic.delete(0, [2])
    assert topic.index.peek_last(ZERO, b"a.b") == 0
    topic.purge(0, 1)
    assert topic.index.peek_last(ZERO, b"a.b") is None
    topic.seal()
    topic.append(0, b"a.d")
    assert topic.index.peek_last(ZERO, b"a.c") == 1
    await topic.index.settled()
    assert topic.index.peek_last(ZERO, b"a.c") is NotInMemory.MISS
    assert topic.index.peek_last(ZERO, b"a.d") == 3
    assert topic.index.peek_last(PartitionId(5), b"a.d") is None


async def test_a_peek_does_not_catch_up_with_a_long_backlog(topic: Topic) -> None:
    topic.append(0, [b"n.%d" % n for n in range(10_000)])
    assert topic.index.peek_last(ZERO, b"n.5") is NotInMemory.MISS
    assert await topic.index.last(ZERO, Filter.parse(b"n.5")) == 5
    assert topic.index.peek_last(ZERO, b"n.5") == 5
