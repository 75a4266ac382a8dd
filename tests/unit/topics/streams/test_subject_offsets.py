"""Which messages each subject has; what limits make of it is in test_keeper.py."""

from __future__ import annotations

import pytest

from penstock.log.log import Log
from penstock.model.errors import ReadFailed
from penstock.model.run import Run
from penstock.model.units import Offset
from penstock.topics.streams import subject_offsets
from penstock.topics.streams.subject_offsets import SubjectOffsets
from tests.unit.log.conftest import OpenLogs, logs
from tests.unit.log.messages import P0

__all__ = ["logs"]


class Made:
    """Offsets of a log's subjects, and what was dropped."""

    def __init__(self, log: Log, most: int | None) -> None:
        self.log, self.dropped, self.dead = log, list[int](), set[int]()
        self.start = 0
        self.offsets = SubjectOffsets(
            log, P0, lambda: self.start, lambda some: {*some} - self.dead, self.dropped.extend
        )
        self.offsets.most = most

    async def publish(self, *subjects: bytes) -> list[int]:
        first = self.log.writer.next_offset(P0)
        future = self.log.append(Run(list(subjects), [b"x"] * len(subjects)))
        gone = self.offsets.add(subjects, first)
        self.dead.update(gone)
        await future
        return gone


async def test_the_oldest_of_a_subject_are_too_many(logs: OpenLogs) -> None:
    made = Made(await logs.log(), 2)
    assert await made.publish(b"a", b"b", b"a") == []
    assert await made.publish(b"a", b"a", b"b") == [0, 2]
    assert (made.offsets.count(b"a"), made.offsets.count(b"b")) == (2, 2)
    assert made.offsets.count(b"c") == 0


async def test_without_a_limit_none_are(logs: OpenLogs) -> None:
    made = Made(await logs.log(), None)
    assert await made.publish(*[b"a"] * 10) == []
    assert made.offsets.count(b"a") == 10


async def test_what_was_there_before_is_looked_up(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run([b"a", b"b", b"a", b"a"], [b"x"] * 4))
    made = Made(log, 2)
    assert made.offsets.count(b"a") is None
    assert await made.publish(b"a") == []
    await made.offsets.loaded()
    assert made.dropped == [0, 2]
    assert made.offsets.count(b"a") == 2
    made.offsets.forget()
    assert made.offsets.count(b"a") is None
    await made.offsets.loaded()


async def test_where_one_is_kept_the_last_one_is_known_at_once(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run([b"a", b"b", b"a"], [b"x"] * 3))
    made = Made(log, 1)
    assert made.offsets.count(b"a") == 1
    assert await made.publish(b"a") == [2]


async def test_what_others_dropped_does_not_count(logs: OpenLogs) -> None:
    made = Made(await logs.log(), 3)
    await made.publish(b"a", b"b", b"a", b"b", b"a")
    made.offsets.dropped([2, 3], b"a")
    assert (made.offsets.count(b"a"), made.offsets.count(b"b")) == (2, 2)
    made.offsets.dropped([1, 3], None)
    assert (made.offsets.count(b"a"), made.offsets.count(b"b")) == (2, 0)
    made.offsets.dropped([9], b"unknown")
    made.start = 1
    assert made.offsets.count(b"a") == 1


async def test_what_cannot_be_looked_up_is_looked_up_the_next_time(
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
        await made.offsets.loaded()
    assert made.dropped == []
    assert made.offsets.count(b"a") is None
    await made.offsets.loaded()
    assert made.dropped == [0]


async def test_of_many_subjects_those_are_forgotten_that_can_be_looked_up(
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
