"""The offsets of each subject, and the subjects with messages that are not durable.

The limits that use them are tested in test_limits.py.
"""

from __future__ import annotations

import pytest

from penstock.log import Log
from penstock.model.errors import ReadFailed
from penstock.model.run import Run
from penstock.model.units import Offset
from penstock.streams import subject_offsets
from penstock.streams.subject_offsets import PendingSubjects, SubjectOffsets
from tests.broker.streams import Streaming, block
from tests.broker.topics import bare_partition
from tests.unit.log.conftest import OpenLogs, logs
from tests.unit.log.messages import P0

__all__ = ["logs"]


class Made:
    """Offsets of a log's subjects, and what was dropped."""

    def __init__(self, log: Log, most: int | None) -> None:
        self.log, self.dropped, self.dead = log, list[int](), set[int]()
        self.start = 0
        self.offsets = SubjectOffsets(
            bare_partition(log),
            lambda: self.start,
            lambda some: {*some} - self.dead,
            self.dropped.extend,
        )
        self.offsets.most = most

    async def publish(self, *subjects: bytes) -> list[int]:
        first = self.log.writer.next_offset(P0)
        future = self.log.append(Run(list(subjects), [b"x"] * len(subjects)))
        gone = self.offsets.add(subjects, first)
        self.dead.update(gone)
        await future
        return gone


async def test_the_oldest_messages_of_a_subject_are_the_excess(logs: OpenLogs) -> None:
    made = Made(await logs.log(), 2)
    assert await made.publish(b"a", b"b", b"a") == []
    assert await made.publish(b"a", b"a", b"b") == [0, 2]
    assert (made.offsets.count(b"a"), made.offsets.count(b"b")) == (2, 2)
    assert made.offsets.count(b"c") == 0


async def test_without_a_limit_there_is_no_excess(logs: OpenLogs) -> None:
    made = Made(await logs.log(), None)
    assert await made.publish(*[b"a"] * 10) == []
    assert made.offsets.count(b"a") == 10


async def test_existing_messages_are_looked_up(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run([b"a", b"b", b"a", b"a"], [b"x"] * 4))
    made = Made(log, 2)
    assert made.offsets.count(b"a") is None
    assert await made.publish(b"a") == []
    await made.offsets.looked_up()
    assert made.dropped == [0, 2]
    assert made.offsets.count(b"a") == 2
    made.offsets.forget()
    assert made.offsets.count(b"a") is None
    await made.offsets.looked_up()


async def test_with_a_limit_of_one_the_last_message_needs_no_look_up(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run([b"a", b"b", b"a"], [b"x"] * 3))
    made = Made(log, 1)
    assert made.offsets.count(b"a") == 1
    assert await made.publish(b"a") == [2]


async def test_deleted_messages_do_not_count_for_their_subject(logs: OpenLogs) -> None:
    made = Made(await logs.log(), 3)
    await made.publish(b"a", b"b", b"a", b"b", b"a")
    made.offsets.note_deleted([2, 3], b"a")
    assert (made.offsets.count(b"a"), made.offsets.count(b"b")) == (2, 2)
    made.offsets.note_deleted([1, 3], None)
    assert (made.offsets.count(b"a"), made.offsets.count(b"b")) == (2, 0)
    made.offsets.note_deleted([9], b"unknown")
    made.start = 1
    assert made.offsets.count(b"a") == 1


async def test_a_failed_look_up_is_repeated_the_next_time(
    logs: OpenLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await logs.log()
    await log.append(Run(b"a", [b"x"] * 3))
    made = Made(log, 2)

    async def fail(*asked: object) -> list[Offset]:
        raise ReadFailed("t", P0, Offset(0), "the disk is broken")

    with monkeypatch.context() as patch:
        patch.setattr(log.index, "matching", fail)
        assert made.offsets.count(b"a") is None
        await made.offsets.looked_up()
    assert made.dropped == []
    assert made.offsets.count(b"a") is None
    await made.offsets.looked_up()
    assert made.dropped == [0]


async def test_beyond_the_limit_durable_subjects_are_forgotten(
    logs: OpenLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_offsets, "SUBJECTS_MAX", 4)
    made = Made(await logs.log(), 1)
    await made.publish(*[b"old.%d" % number for number in range(4)])
    log = made.log
    waiting = log.append(Run(b"new", [b"x"]))
    made.offsets.add([b"new"], 4)
    for number in range(10):
        made.offsets.count(b"asked.%d" % number)
    assert len(made.offsets._subjects) <= 5
    assert made.offsets.count(b"new") == 1
    await waiting


async def test_a_stored_subject_with_wildcards_counts_its_own_messages_only(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run([b"a.1", b"a.*", b"a.2", b"a.*", b"a.*"], [b"x"] * 5))
    made = Made(log, 2)
    assert made.offsets.count(b"a.*") is None
    await made.offsets.looked_up()
    assert made.dropped == [1]
    assert made.offsets.count(b"a.*") == 2


async def test_a_subject_is_pending_until_its_message_is_durable(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_rollup_hdrs=True)
    known = stream.enforcer.pending_subjects
    assert known is not None
    one = stream.opened.log.append(Run(b"s.1", [b"x"], partition=stream.partition.id))
    two = stream.opened.log.append(
        Run([b"s.2", b"s.3"], [b"x", b"x"], partition=stream.partition.id)
    )
    assert [known.has(b"s.%d" % number) for number in (1, 2, 3, 4)] == [True, True, True, False]
    await one
    await two
    assert not any(known.has(b"s.%d" % number) for number in (1, 2, 3, 4))


async def test_earlier_pending_messages_may_have_any_subject(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"])
    assert stream.enforcer.pending_subjects is None
    stored = stream.opened.log.append(Run(b"s.1", [b"x"], partition=stream.partition.id))
    known = PendingSubjects(stream.partition)
    assert known.has(b"s.2")
    await stored
    assert not known.has(b"s.1")


async def test_durable_subjects_are_forgotten(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_offsets, "PENDING_SUBJECTS_MAX", 10)
    stream = await made.create("s", subjects=["s.>"], allow_rollup_hdrs=True)
    known = stream.enforcer.pending_subjects
    assert known is not None
    for number in range(100):
        await stream.opened.log.append(Run(b"s.%d" % number, [b"x"], partition=stream.partition.id))
    assert len(known._stops) <= 11


async def test_a_roll_up_finds_durable_and_pending_messages(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_rollup_hdrs=True)
    await made.publish("s.1", b"durable")
    stream.opened.log.append(Run(b"s.1", [b"under way"], partition=stream.partition.id))
    stream.opened.log.append(Run(b"s.2", [b"another"], partition=stream.partition.id))
    await made.publish("s.1", b"last", block("Nats-Rollup: sub"))
    texts = [text async for rows in stream.rows_from(0, 100) for text in rows.payloads]
    assert texts == [b"another", b"last"]
