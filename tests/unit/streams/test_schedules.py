"""Schedules: when they are due, what they store, and how they end; the clock is moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from msgspec.structs import replace

from penstock.model.run import Run
from penstock.streams import schedule_table, schedules
from penstock.streams.appender import Appender
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.schedule_firing import LATER_MAX, ProducedMessage, ScheduleFiring
from penstock.streams.schedule_table import ScheduledFiring, ScheduleTable
from penstock.streams.stream import Stream
from penstock.wire import headers
from tests.broker.storage import World
from tests.broker.streams import Streaming, block, fail_once, start_again, stream_all
from tests.broker.topics import serve
from tests.eventually import eventually


def table(*dues: ScheduledFiring) -> ScheduleTable:
    made = ScheduleTable()
    for due in dues:
        made.put(due)
    return made


A, B, C = ScheduledFiring(10, 1, b"a"), ScheduledFiring(20, 2, b"b"), ScheduledFiring(10, 3, b"c")


def test_due_schedules_are_returned_in_order_up_to_a_limit() -> None:
    made = table(C, B, A)
    assert made.next_us() == 10
    assert made.due(9, 5) == []
    assert made.due(10, 1) == [A]
    assert made.due(30, 5) == [C, B]
    assert made.due(30, 5) == []


def test_only_the_last_schedule_of_a_subject_counts() -> None:
    made = table(A, ScheduledFiring(5, 4, b"a"))
    assert made.get(b"a") == ScheduledFiring(5, 4, b"a")
    assert made.due(30, 5) == [ScheduledFiring(5, 4, b"a")]
    assert len(made) == 1


def test_a_forgotten_schedule_is_not_due_unless_it_was_replaced() -> None:
    made = table(A, B)
    made.forget(A)
    made.forget(ScheduledFiring(21, 2, b"b"))
    assert made.due(30, 5) == [B]


def test_a_due_schedule_can_be_put_again() -> None:
    made = table(A)
    (due,) = made.due(10, 5)
    made.put(due._replace(us=15))
    assert made.next_us() == 15
    made.forget(due)
    assert made.due(20, 5) == [ScheduledFiring(15, 1, b"a")]


def test_an_empty_table_has_no_due_schedule() -> None:
    assert table().next_us() is None


def test_beyond_the_limit_the_last_schedules_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_table, "SCHEDULES_MAX", 10)
    made = table(*(ScheduledFiring(100 - number, number, b"%d" % number) for number in range(11)))
    assert len(made) == 5
    assert made.beyond_us == 95
    assert [due.us for due in made.due(200, 20)] == [90, 91, 92, 93, 94]
    assert made.next_us() == 95


def test_a_schedule_that_changes_often_uses_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_table, "SCHEDULES_MAX", 100)
    made = table(*(ScheduledFiring(1000 + number, number, b"same") for number in range(1000)))
    assert len(made._heap) < 10
    assert made.due(5000, 5) == [ScheduledFiring(1999, 999, b"same")]


FAR = "@at 2100-01-01T00:00:00Z"


async def begun(made: Streaming, **config: object) -> tuple[Stream, ScheduleFiring]:
    stream = await made.create("s", subjects=["s.>"], allow_msg_schedules=True, **config)
    return stream, ScheduleFiring(stream, Appender(stream, DuplicateWindow(0, lambda: 0)))


async def schedule_far(
    made: Streaming, subject: str, *fields: str, pattern: str = FAR
) -> ScheduledFiring:
    told = block(f"Nats-Schedule: {pattern}", "Nats-Schedule-Target: s.t", *fields)
    answer = await made.publish(subject, subject.encode(), told)
    assert isinstance(answer, dict)
    return ScheduledFiring(0, answer["seq"] - 1, subject.encode())


async def fire(firing: ScheduleFiring, *due: ScheduledFiring) -> list[ProducedMessage]:
    return [message async for stored in firing.fire(list(due), 0) for message in stored]


async def texts(stream: Stream) -> list[bytes]:
    return [text async for rows in stream.rows_from(0, 1000) for text in rows.payloads]


async def test_messages_of_due_schedules_are_stored_in_order(made: Streaming) -> None:
    stream, firing = await begun(made)
    one, two = await schedule_far(made, "s.1"), await schedule_far(made, "s.2")
    messages = await fire(firing, two, one)
    assert [(message.firing, message.next) for message in messages] == [(one, None), (two, None)]
    assert await texts(stream) == [b"s.1", b"s.2"]
    assert (stream.first_seq, stream.last_seq) == (3, 4)


async def test_a_deleted_schedule_produces_nothing(made: Streaming) -> None:
    stream, firing = await begun(made)
    one, two = await schedule_far(made, "s.1"), await schedule_far(made, "s.2")
    await stream.delete([one.offset])
    assert [message.firing for message in await fire(firing, one, two)] == [two]
    assert await fire(firing, one, two) == []


async def test_a_schedule_deleted_before_the_append_produces_nothing(made: Streaming) -> None:
    """The schedule is deleted after its message was produced and before the append."""
    stream, firing = await begun(made)
    due = await schedule_far(made, "s.1")
    messages = await firing._produce([due], 0)
    stream.enforcer.delete_soon(stream.first_offset, [due.offset], b"s.1")
    assert await firing._store(messages) == []
    await stream.opened.log.writer.flush()
    assert await texts(stream) == []


async def test_produced_messages_that_roll_up_replace_each_other(made: Streaming) -> None:
    stream, firing = await begun(made)
    await made.publish("s.t", b"before")
    rolls = "Nats-Schedule-Rollup: sub"
    one, two = await schedule_far(made, "s.1", rolls), await schedule_far(made, "s.2", rolls)
    assert [message.firing for message in await fire(firing, one, two)] == [one, two]
    assert await texts(stream) == [b"s.2"]


async def test_produced_messages_without_interest_are_deleted(made: Streaming) -> None:
    stream, firing = await begun(made)
    due = await schedule_far(made, "s.1", pattern="@every 5s")
    stream.require_interest(lambda subject: subject != b"s.t")
    (message,) = await fire(firing, due)
    assert message.next is not None
    assert await texts(stream) == [b"s.1"]
    assert stream.last_seq == 2


async def test_a_schedule_is_void_after_too_many_later_messages(made: Streaming) -> None:
    _, firing = await begun(made)
    target = await schedule_far(made, "s.1")
    for _ in range(LATER_MAX - 1):
        (message,) = await firing._produce([await schedule_far(made, "s.2")], 0)
        await firing._store([message._replace(subject=b"s.1")])
    assert len(await firing._produce([target], 0)) == 1
    (message,) = await firing._produce([await schedule_far(made, "s.2")], 0)
    await firing._store([message._replace(subject=b"s.1")])
    assert await firing._produce([target], 0) == []


async def test_a_produced_message_that_is_too_large_is_skipped(made: Streaming) -> None:
    stream, firing = await begun(made, max_msg_size=150)
    one, two = await schedule_far(made, "s.1"), await schedule_far(made, "s.2")
    first, second = await firing._produce([one, two], 0)
    stored = await firing._store([first._replace(payload=b"x" * 150), second])
    assert [message.firing for message in stored] == [one, two]
    assert await texts(stream) == [b"s.1", b"s.2"]
    assert stream.last_seq == 3


Found = tuple[bytes, bytes]


@pytest_asyncio.fixture
async def made(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Streaming]:
    monkeypatch.setattr(schedules, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(schedules, "RETRY_SECONDS", 0.01)
    streaming = await stream_all(world)
    yield streaming
    streaming.close()


async def scheduled(made: Streaming, **config: object) -> Stream:
    options = {"allow_msg_schedules": True, "allow_msg_ttl": True} | config
    return await made.create("s", subjects=["s.>", "t.>"], **options)


async def schedule(
    made: Streaming, subject: str, pattern: str, payload: bytes = b"x", *fields: str
) -> object:
    target = "Nats-Schedule-Target: t.a"
    own = [] if any(field.startswith("Nats-Schedule-Target") for field in fields) else [target]
    return await made.publish(subject, payload, block(f"Nats-Schedule: {pattern}", *own, *fields))


def ahead(world: World, seconds: float) -> str:
    """So far in the future, as `@at` wants it."""
    at = datetime.fromtimestamp(world.clock.now_us() / 1e6 + seconds, UTC)
    return f"@at {at.isoformat().replace('+00:00', 'Z')}"


async def messages(stream: Stream) -> list[Found]:
    found: list[Found] = []
    async for rows in stream.rows_from(0, 100):
        found += zip(rows.subjects, rows.payloads, strict=True)
    return found


async def becomes(stream: Stream, *expected: Found) -> None:
    async def so() -> bool:
        return await messages(stream) == list(expected)

    await eventually(so)


async def looked(made: Streaming) -> None:
    """Everything that is stored was seen, and nothing is due."""
    watch = made.streams._served["s"].schedules

    async def so() -> bool:
        next_us = watch._table.next_us()
        seen = watch._position >= watch._stream.next_offset
        return seen and (next_us is None or next_us > watch._clock.now_us())

    await eventually(so)


async def blocks(stream: Stream, subject: bytes) -> list[bytes]:
    found: list[bytes] = []
    async for rows in stream.rows_from(0, 100):
        told: Sequence[bytes] = rows.headers or [b""] * rows.count
        found += [text for own, text in zip(rows.subjects, told, strict=True) if own == subject]
    return found


async def nexts(stream: Stream) -> list[bytes]:
    return [
        headers.get(text, b"Nats-Schedule-Next") or b"" for text in await blocks(stream, b"t.a")
    ]


async def test_a_due_message_is_stored_and_its_schedule_deleted(
    made: Streaming, world: World
) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", ahead(world, 10), b"body", "Own: field", "Nats-Msg-Id: once")
    await schedule(made, "s.b", ahead(world, 20), b"later")
    await looked(made)
    assert await messages(stream) == [(b"s.a", b"body"), (b"s.b", b"later")]
    world.clock.pass_seconds(11)
    await becomes(stream, (b"s.b", b"later"), (b"t.a", b"body"))
    assert await blocks(stream, b"t.a") == [
        block("Own: field", "Nats-Scheduler: s.a", "Nats-Schedule-Next: purge")
    ]
    world.clock.pass_seconds(10)
    await becomes(stream, (b"t.a", b"body"), (b"t.a", b"later"))


async def test_an_interval_repeats_and_its_messages_name_the_next_time(
    made: Streaming, world: World
) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", "@every 10s", b"tick")
    for count in range(1, 4):
        world.clock.pass_seconds(10)
        await becomes(stream, (b"s.a", b"tick"), *[(b"t.a", b"tick")] * count)
    first, second, third = map(datetime.fromisoformat, map(bytes.decode, await nexts(stream)))
    assert (second - first).total_seconds() == (third - second).total_seconds() == 10


async def test_a_firing_missed_during_downtime_is_made_up_for_once(
    made: Streaming, world: World
) -> None:
    await scheduled(made)
    await schedule(made, "s.a", "@every 10s", b"tick")
    await schedule(made, "s.b", ahead(world, 30), b"single")
    made.close()
    left = await made.served.crash()
    world.clock.pass_seconds(1000)
    made = Streaming(await serve(world, left))
    stream = made.streams.get("s")
    assert stream is not None
    both = [(b"s.a", b"tick"), (b"t.a", b"tick"), (b"t.a", b"single")]
    await becomes(stream, *both)
    await looked(made)
    assert await messages(stream) == both
    world.clock.pass_seconds(11)
    await becomes(stream, *both, (b"t.a", b"tick"))
    made.close()


async def test_a_schedule_that_fired_does_not_fire_again_after_a_restart(
    made: Streaming, world: World
) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", "@every 1h", b"tick")
    world.clock.pass_seconds(3601)
    fired = [(b"s.a", b"tick"), (b"t.a", b"tick")]
    await becomes(stream, *fired)
    made, stream = await start_again(made, "s")
    await looked(made)
    assert await messages(stream) == fired
    world.clock.pass_seconds(3600)
    await becomes(stream, *fired, (b"t.a", b"tick"))
    made.close()


async def test_a_schedule_does_not_fire_again_after_its_message_was_deleted(
    made: Streaming, world: World
) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", "@every 1h", b"tick")
    world.clock.pass_seconds(3601)
    await becomes(stream, (b"s.a", b"tick"), (b"t.a", b"tick"))
    await stream.delete([1])
    made, stream = await start_again(made, "s")
    await looked(made)
    assert await messages(stream) == [(b"s.a", b"tick")]
    world.clock.pass_seconds(3600)
    await becomes(stream, (b"s.a", b"tick"), (b"t.a", b"tick"))
    made.close()


async def test_a_completed_schedule_left_by_a_crash_is_deleted(
    made: Streaming, world: World
) -> None:
    """What it stored is durable, its own deletion is not."""
    stream = await scheduled(made)
    await schedule(made, "s.a", ahead(world, 3600), b"single")
    await looked(made)
    produced = block("Nats-Scheduler: s.a", "Nats-Schedule-Next: purge")
    await stream.opened.log.append(Run(b"t.a", [b"single"], [produced], stream.partition.id))
    await becomes(stream, (b"t.a", b"single"))


async def test_a_schedule_fires_once_after_a_disk_error(
    made: Streaming, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", ahead(world, 10), b"single")
    await looked(made)
    fail_once(made, monkeypatch)
    world.clock.pass_seconds(11)
    await becomes(stream, (b"t.a", b"single"))


async def test_a_new_schedule_replaces_the_one_before(made: Streaming, world: World) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", ahead(world, 10), b"old")
    await schedule(made, "s.a", ahead(world, 20), b"new")
    await becomes(stream, (b"s.a", b"new"))
    world.clock.pass_seconds(11)
    await looked(made)
    assert await messages(stream) == [(b"s.a", b"new")]
    world.clock.pass_seconds(10)
    await becomes(stream, (b"t.a", b"new"))


async def test_a_schedule_that_is_deleted_is_never_due(made: Streaming, world: World) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", ahead(world, 10), b"single")
    await looked(made)
    await stream.delete([0])
    world.clock.pass_seconds(11)
    await looked(made)
    assert await messages(stream) == []


async def test_a_client_ends_a_schedule_with_a_message(made: Streaming, world: World) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", ahead(world, 10), b"single")
    made.streams._served["s"].schedules.stop()  # which would end it, too, but later
    ends = block("Nats-Schedule-Next: purge", "Nats-Scheduler: s.a")
    assert await made.publish("t.no", b"ended", ends) == {"stream": "s", "seq": 2}
    assert await messages(stream) == [(b"t.no", b"ended")]
    made.streams._served["s"].schedules.start()
    world.clock.pass_seconds(11)
    await looked(made)
    assert await messages(stream) == [(b"t.no", b"ended")]


async def test_a_message_without_a_schedule_ends_the_one_before_it(
    made: Streaming, world: World
) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", "@every 10s", b"tick")
    await made.publish("s.a", b"plain")
    world.clock.pass_seconds(11)
    await looked(made)
    assert await messages(stream) == [(b"s.a", b"tick"), (b"s.a", b"plain")]


async def test_a_message_of_another_schedule_does_not_end_a_schedule(
    made: Streaming, world: World
) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", ahead(world, 20), b"first")
    await schedule(made, "s.b", ahead(world, 10), b"second", "Nats-Schedule-Target: s.a")
    world.clock.pass_seconds(11)
    await becomes(stream, (b"s.a", b"first"), (b"s.a", b"second"))
    world.clock.pass_seconds(10)
    await becomes(stream, (b"s.a", b"second"), (b"t.a", b"first"))


async def test_the_last_message_of_a_source_is_stored_else_its_own_content(
    made: Streaming, world: World
) -> None:
    stream = await scheduled(made)
    await schedule(made, "s.a", "@every 10s", b"own", "Nats-Schedule-Source: t.source")
    world.clock.pass_seconds(10)
    await becomes(stream, (b"s.a", b"own"), (b"t.a", b"own"))
    source = block("Own: source", "Nats-Msg-Id: 1", "Nats-TTL: 1h")
    await made.publish("t.source", b"sample", source)
    world.clock.pass_seconds(10)
    await becomes(
        stream, (b"s.a", b"own"), (b"t.a", b"own"), (b"t.source", b"sample"), (b"t.a", b"sample")
    )
    last = (await blocks(stream, b"t.a"))[-1]
    assert headers.get(last, b"Own") == b"source"
    assert headers.get(last, b"Nats-TTL") is None


async def test_a_produced_message_has_the_ttl_and_roll_up_of_its_schedule(
    made: Streaming, world: World
) -> None:
    stream = await scheduled(made)
    await made.publish("t.a", b"before")
    fields = ("Nats-Schedule-TTL: 60", "Nats-Schedule-Rollup: sub")
    await schedule(made, "s.a", ahead(world, 10), b"single", *fields)
    world.clock.pass_seconds(11)
    await becomes(stream, (b"t.a", b"single"))
    (told,) = await blocks(stream, b"t.a")
    assert headers.get(told, b"Nats-TTL") == b"60"
    assert headers.get(told, b"Nats-Rollup") == b"sub"
    world.clock.pass_seconds(61)
    made.streams._served["s"].expiry.start()
    await becomes(stream)


async def test_limits_and_mappings_apply_to_produced_messages(
    made: Streaming, world: World
) -> None:
    transform = {"src": "t.>", "dest": "t.mapped.>"}
    stream = await scheduled(made, max_msgs_per_subject=2, subject_transform=transform)
    await schedule(made, "s.a", "@every 10s", b"tick")
    for _ in range(4):
        before = stream.next_offset
        world.clock.pass_seconds(10)

        async def fired(before: int = before) -> bool:
            return stream.next_offset > before

        await eventually(fired)
    await becomes(stream, (b"s.a", b"tick"), *[(b"t.mapped.a", b"tick")] * 2)


async def test_a_refused_message_does_not_delay_other_schedules(
    made: Streaming, world: World
) -> None:
    stream = await scheduled(made, max_msg_size=200)
    fields = ("Nats-Schedule-Source: t.source",)
    await made.publish("t.source", b"x" * 200)
    await schedule(made, "s.a", ahead(world, 10), b"fits")
    await schedule(made, "s.b", ahead(world, 10), b"too large with its fields", *fields)
    world.clock.pass_seconds(11)
    large = (b"t.source", b"x" * 200)
    await becomes(stream, large, (b"s.b", b"too large with its fields"), (b"t.a", b"fits"))


async def test_an_update_may_allow_schedules(made: Streaming, world: World) -> None:
    stream = await made.create("s", subjects=["s.>", "t.>"])
    answer = await schedule(made, "s.a", ahead(world, 10))
    assert isinstance(answer, dict)
    assert answer["error"]["err_code"] == 10188
    config = replace(stream.config, allow_msg_schedules=True, allow_rollup_hdrs=True)
    await made.streams.update(config)
    await schedule(made, "s.a", ahead(world, 10), b"single")
    world.clock.pass_seconds(11)
    await becomes(stream, (b"t.a", b"single"))


async def test_all_schedules_fire_in_time_beyond_the_table_limit(
    made: Streaming, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_table, "SCHEDULES_MAX", 10)
    monkeypatch.setattr(schedules, "DUE_AT_ONCE", 3)
    stream = await scheduled(made)
    for number in range(30):
        await schedule(made, f"s.{number}", ahead(world, 100 + number), b"%d" % number)
    await schedule(made, "s.every", "@every 110s", b"again")
    await looked(made)
    assert len(made.streams._served["s"].schedules._table) <= 10
    world.clock.pass_seconds(115)

    async def fired(count: int) -> bool:
        return [subject for subject, _ in await messages(stream)].count(b"t.a") == count

    await eventually(lambda: fired(16 + 1))
    await looked(made)
    assert await fired(16 + 1)
    world.clock.pass_seconds(60)
    await eventually(lambda: fired(30 + 1))
    await looked(made)
    stored = [text for subject, text in await messages(stream) if subject == b"t.a"]
    assert sorted(stored) == sorted([*(b"%d" % number for number in range(30)), b"again"])


async def test_schedules_of_a_batch_fire_too(made: Streaming, world: World) -> None:
    stream = await scheduled(made, allow_atomic=True)
    fields = ("Nats-Batch-Id: b", "Nats-Batch-Sequence: 1", "Nats-Batch-Commit: 1")
    await schedule(made, "s.a", ahead(world, 10), b"single", *fields)
    assert headers.get((await blocks(stream, b"s.a"))[0], b"Nats-Rollup") == b"sub"
    world.clock.pass_seconds(11)
    await becomes(stream, (b"t.a", b"single"))


async def test_a_mirror_copies_schedules_and_fires_nothing(made: Streaming, world: World) -> None:
    await scheduled(made)
    copy = await made.create("copy", mirror={"name": "s"})
    await schedule(made, "s.a", "@every 10s", b"tick")
    world.clock.pass_seconds(10)
    await becomes(copy, (b"s.a", b"tick"), (b"t.a", b"tick"))
