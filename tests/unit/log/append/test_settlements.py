"""Settle frames are read back and retained while they are needed."""

import msgspec
import pytest

from penstock.log.append.settlements import Settled, kind_of
from tests.unit.log.conftest import OpenLogs
from tests.unit.log.messages import eventually
from tests.unit.log.test_log import numbered


def body(kind: str, *entries: object) -> bytes:
    return msgspec.msgpack.encode([kind, 1, *entries])


async def rotate(logs: OpenLogs, log: object) -> None:
    before = len(logs.wal_files())
    log.rotate()  # type: ignore[attr-defined]
    await eventually(lambda: len(logs.wal_files()) > before)


async def test_settlements_are_read_back_by_kind_and_in_order_after_a_crash(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.settle(body("job", "a"), 1)
    await log.append(numbered(0, 3))
    await log.settle(body("consumer", "b", 7), 1)
    await rotate(logs, log)
    await log.settle(body("job", *range(40)), 40)
    again = await logs.crash().log()
    jobs = await again.settlements.read("job")
    assert [(one.version, one.entries) for one in jobs] == [(1, ["a"]), (1, list(range(40)))]
    assert jobs[0].frame < jobs[1].frame
    assert [one.entries for one in await again.settlements.read("consumer")] == [["b", 7]]
    assert await again.settlements.read("other") == []


async def test_no_kind_drops_frames_that_another_needs(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.settle(body("consumer", 1), 1)
    first = log.state.settle_floor
    mark = log.writer.durable_number
    await log.settle(body("job", 2), 1)
    await log.settlements.read("job")
    log.settlements.keep("job", mark)
    assert log.state.settle_floor == first
    again = await logs.crash().log()
    (job,) = await again.settlements.read("job")
    again.settlements.keep("job", job.frame)
    assert [one.entries for one in await again.settlements.read("consumer")] == [[1]]
    again.settlements.keep("consumer", None)
    assert again.state.settle_floor == job.frame
    again.settlements.keep("job", None)
    assert await again.settlements.read("job") == []


async def test_a_body_longer_than_a_read_is_found_whole(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.settle(body("job", b"x" * (9 << 20)), 1)
    await log.settle(body("job", b"y"), 1)
    again = await logs.crash().log()
    assert [one.entries for one in await again.settlements.read("job")] == [
        [b"x" * (9 << 20)],
        [b"y"],
    ]


async def test_bodies_of_no_kind_are_passed_over(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.settle(b"acks", 1)
    await log.settle(body("job"), 1)
    again = await logs.crash().log()
    assert [type(one) for one in await again.settlements.read("job")] == [Settled]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (body("job"), "job"),
        (body("job", *range(20)), "job"),
        (body("job", *range(70_000)), "job"),
        (b"", ""),
        (b"\x91", ""),
        (b"acks", ""),
        (msgspec.msgpack.encode([1, 2]), ""),
    ],
)
def test_the_kind_is_the_first_word(data: bytes, kind: str) -> None:
    assert kind_of(data) == kind
