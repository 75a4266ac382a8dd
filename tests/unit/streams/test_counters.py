"""Counters: each message stores the current sum, also after deletions and failures."""

from __future__ import annotations

import pytest

from penstock.model.errors import PenstockError
from penstock.model.run import Origin
from penstock.streams import counters
from penstock.streams.stream import Stream
from penstock.wire.parser import Publishes
from tests.broker.streams import (
    Streaming,
    appended_runs,
    block,
    fail_once,
    start_again,
)
from tests.eventually import eventually

MISSING = {
    "error": {
        "code": 400,
        "err_code": 10169,
        "description": "message counter increment is missing",
    },
    "stream": "s",
    "seq": 0,
}


def counted(seq: int, total: int | str) -> object:
    return {"stream": "s", "seq": seq, "val": str(total)}


def err_code(answer: object) -> object:
    assert isinstance(answer, dict)
    return answer["error"]["err_code"]


async def add(made: Streaming, subject: str, number: int | str, *fields: str) -> object:
    return await made.publish(subject, b"", block(f"Nats-Incr: {number}", *fields))


async def stored(stream: Stream) -> list[tuple[bytes, bytes, bytes]]:
    found: list[tuple[bytes, bytes, bytes]] = []
    async for rows in stream.rows_from(0, 1000):
        found += zip(rows.subjects, rows.headers or (), rows.payloads, strict=True)
    return found


def send(made: Streaming, subjects: list[bytes], blocks: list[bytes]) -> None:
    publisher = made.streams.route(subjects[0])
    assert publisher is not None
    replies = [b"n%d" % place for place in range(len(subjects))]
    publisher.publish(Publishes(subjects, replies, blocks, [b""] * len(subjects)), lambda: None)


async def answered(made: Streaming, count: int) -> None:
    async def all_there() -> bool:
        return len(made.answers) >= count

    await eventually(all_there)


@pytest.mark.feature("P03")
async def test_a_counter_message_stores_the_sum_of_its_subject(made: Streaming) -> None:
    stream = await made.create("s", subjects=["c.>"], allow_msg_counter=True)
    assert await add(made, "c.a", "+5") == counted(1, 5)
    assert await add(made, "c.b", 1) == counted(2, 1)
    assert await add(made, "c.a", -12, "A: b") == counted(3, -7)
    assert await stored(stream) == [
        (b"c.a", block("Nats-Incr: +5"), b'{"val":"5"}'),
        (b"c.b", block("Nats-Incr: 1"), b'{"val":"1"}'),
        (b"c.a", block("Nats-Incr: -12", "A: b"), b'{"val":"-7"}'),
    ]


@pytest.mark.feature("P03")
async def test_increments_of_one_run_see_each_other_and_are_appended_together(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["c.>"], allow_msg_counter=True)
    runs = appended_runs(stream, monkeypatch)
    subjects = [b"c.a", b"c.b", b"c.a", b"c.bad", b"c.a"]
    blocks = [block(f"Nats-Incr: {text}") for text in ("1", "10", "2", "x", "3")]
    send(made, subjects, blocks)
    await answered(made, 5)
    assert [made.answers[b"n%d" % place] for place in (0, 1, 2, 4)] == [
        counted(1, 1),
        counted(2, 10),
        counted(3, 3),
        counted(4, 6),
    ]
    assert err_code(made.answers[b"n3"]) == 10171
    assert runs == [4]


@pytest.mark.feature("P03")
async def test_sums_are_known_after_a_restart(made: Streaming) -> None:
    await made.create("s", subjects=["c.>"], allow_msg_counter=True)
    huge = "9" * 5000
    await add(made, "c.a", 7)
    await add(made, "c.huge", huge)
    made, _ = await start_again(made, "s")
    assert await add(made, "c.a", 1) == counted(3, 8)
    assert await add(made, "c.huge", 1) == counted(4, "1" + "0" * 5000)
    made.close()


async def test_a_sum_continues_from_the_last_existing_message(made: Streaming) -> None:
    stream = await made.create("s", subjects=["c.>"], allow_msg_counter=True)
    for number in (1, 10, 100):
        await add(made, "c.a", number)
    await stream.delete([2])
    assert await add(made, "c.a", 5) == counted(4, 16)
    await stream.purge(4)
    assert await add(made, "c.a", 1) == counted(5, 1)


async def test_sums_deleted_by_a_limit_do_not_count_even_within_a_run(made: Streaming) -> None:
    await made.create("s", subjects=["c.>"], allow_msg_counter=True, max_msgs=1)
    subjects = [b"c.a", b"c.a", b"c.b", b"c.a"]
    send(made, subjects, [block("Nats-Incr: 1")] * 4)
    await answered(made, 4)
    totals = [made.answers[b"n%d" % place]["val"] for place in range(4)]
    assert totals == ["1", "2", "1", "1"]


async def test_an_increment_that_failed_is_not_counted(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made.create("s", subjects=["c.>"], allow_msg_counter=True)
    await add(made, "c.a", 1)
    fail_once(made, monkeypatch)
    assert err_code(await add(made, "c.a", 100)) == 10077

    async def again() -> bool:
        return await add(made, "c.b", 1) == counted(2, 1)

    await eventually(again)
    assert await add(made, "c.a", 1) == counted(3, 2)


async def test_no_protocol_stores_a_message_that_is_not_a_sum(made: Streaming) -> None:
    stream = await made.create("s", subjects=["c"], allow_msg_counter=True)
    assert await made.publish("c", b"x") == MISSING
    assert await made.publish("c", b"x", block("A: b")) == MISSING
    with pytest.raises(PenstockError, match="increment is missing"):
        await made.push(stream, b"x", subject=b"c")
    assert stream.messages == 0


async def test_an_invalid_sum_breaks_only_its_own_counter(made: Streaming) -> None:
    stream = await made.create("s", subjects=["c.>"], allow_msg_counter=True)
    await made.push(stream, b"not a sum", subject=b"c.a", origin=Origin.COUNTER)
    assert err_code(await add(made, "c.a", 1)) == 10172
    assert await add(made, "c.b", 1) == counted(2, 1)


async def test_an_id_is_counted_once(made: Streaming) -> None:
    await made.create("s", subjects=["c"], allow_msg_counter=True)
    assert await add(made, "c", 1, "Nats-Msg-Id: i") == counted(1, 1)
    duplicate = {"stream": "s", "seq": 1, "duplicate": True}
    assert await add(made, "c", 1, "Nats-Msg-Id: i") == duplicate
    assert await add(made, "c", 1, "Nats-Msg-Id: j") == counted(2, 2)


async def test_a_message_that_is_too_large_changes_nothing(made: Streaming) -> None:
    await made.create("s", subjects=["c"], allow_msg_counter=True, max_msg_size=40)
    assert await add(made, "c", 1) == counted(1, 1)
    assert err_code(await add(made, "c", 10**8)) == 10054
    assert await add(made, "c", 1) == counted(2, 2)


async def test_the_number_of_cached_sums_is_limited(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "SUMS_MAX", 3)
    await made.create("s", subjects=["c.>"], allow_msg_counter=True)
    for turn in (1, 2):
        send(made, [b"c.%d" % n for n in range(10)], [block("Nats-Incr: 1")] * 10)
        await answered(made, 10)
        assert {answer["val"] for answer in made.answers.values()} == {str(turn)}
        made.answers.clear()
    publisher = made.streams.route(b"c.0")
    assert publisher is not None
    assert len(publisher._single._checks.sums._cache) == 3
    await add(made, "c.long", "1" + "0" * counters.DIGITS_MAX)
    assert b"c.long" not in publisher._single._checks.sums._cache
    assert await add(made, "c.long", -1) == counted(22, "9" * counters.DIGITS_MAX)


async def test_a_broken_counter_of_a_run_does_not_affect_the_others(made: Streaming) -> None:
    stream = await made.create("s", subjects=["c.>"], allow_msg_counter=True)
    await made.push(stream, b"not a sum", subject=b"c.a", origin=Origin.COUNTER)
    send(made, [b"c.a", b"c.b", b"c.a"], [block("Nats-Incr: 1")] * 3)
    await answered(made, 3)
    assert err_code(made.answers[b"n0"]) == err_code(made.answers[b"n2"]) == 10172
    assert made.answers[b"n1"] == counted(2, 1)
