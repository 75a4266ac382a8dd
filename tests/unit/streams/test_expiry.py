"""Messages expire by age and by TTL; the clock is moved by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.model.run import Run
from penstock.streams import expiry
from penstock.streams.stream import Stream
from tests.broker.storage import World
from tests.broker.streams import Streaming, block, fail_once, start_again
from tests.eventually import eventually

SECOND = 1_000_000_000


async def texts(stream: Stream) -> list[bytes]:
    return [text async for rows in stream.rows_from(0, 100) for text in rows.payloads]


async def becomes(made: Streaming, stream: Stream, *expected: bytes) -> None:
    """After a look at the clock, this is what there is."""
    watch = made.streams._served[stream.name].expiry

    async def so() -> bool:
        watch.start()
        return await texts(stream) == list(expected)

    await eventually(so)
    await stream.measured()
    assert stream.messages == len(expected)


async def markers(stream: Stream) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    async for rows in stream.rows_from(0, 100):
        found += [
            (subject, told)
            for subject, told in zip(rows.subjects, rows.headers or [], strict=True)
            if b"Nats-Marker-Reason" in told
        ]
    return found


async def test_messages_expire_at_the_age_limit(made: Streaming, world: World) -> None:
    stream = await made.create("s", subjects=["s"], max_age=10 * SECOND)
    await made.publish("s", b"1")
    world.clock.pass_seconds(6)
    await made.publish("s", b"2")
    await becomes(made, stream, b"1", b"2")
    world.clock.pass_seconds(5)
    await becomes(made, stream, b"2")
    assert stream.size_bytes == 32
    world.clock.pass_seconds(6)
    await becomes(made, stream)
    assert (stream.first_seq, stream.last_seq) == (3, 2)
    await made.publish("s", b"3")
    await becomes(made, stream, b"3")


async def test_a_message_expires_when_its_ttl_has_passed(made: Streaming, world: World) -> None:
    stream = await made.create("s", subjects=["s"], allow_msg_ttl=True)
    for text, ttl in ((b"10", "10"), (b"5", "5s"), (b"never", "never")):
        await made.publish("s", text, block(f"Nats-TTL: {ttl}"))
    await made.publish("s", b"plain")
    world.clock.pass_seconds(6)
    await becomes(made, stream, b"10", b"never", b"plain")
    world.clock.pass_seconds(5)
    await becomes(made, stream, b"never", b"plain")
    world.clock.pass_seconds(1000)
    await becomes(made, stream, b"never", b"plain")


async def test_ttls_and_age_limits_continue_after_a_restart(made: Streaming, world: World) -> None:
    stream = await made.create("s", subjects=["s"], allow_msg_ttl=True, max_msgs=3)
    await made.publish("s", b"dropped", block("Nats-TTL: 1"))
    for text, ttl in ((b"10", "10"), (b"5", "5"), (b"never", "never")):
        await made.publish("s", text, block(f"Nats-TTL: {ttl}"))
    made, stream = await start_again(made, "s")
    await becomes(made, stream, b"10", b"5", b"never")
    world.clock.pass_seconds(6)
    await becomes(made, stream, b"10", b"never")
    made.close()


async def test_an_expired_subject_leaves_a_delete_marker_if_configured_so(
    made: Streaming, world: World
) -> None:
    stream = await made.create(
        "s",
        subjects=["s.>"],
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        max_age=10 * SECOND,
        subject_delete_marker_ttl=20 * SECOND,
    )
    await made.publish("s.old", b"1")
    await made.publish("s.again", b"2")
    await made.publish("s.own", b"3", block("Nats-TTL: 2"))
    world.clock.pass_seconds(3)
    await becomes(made, stream, b"1", b"2", b"")
    ((subject, told),) = await markers(stream)
    assert subject == b"s.own"
    for field in (b"Nats-Marker-Reason: MaxAge", b"Nats-TTL: 20s"):
        assert field in told
    world.clock.pass_seconds(5)
    await made.publish("s.again", b"4")
    world.clock.pass_seconds(3)
    await becomes(made, stream, b"", b"4", b"")
    assert sorted(subject for subject, _ in await markers(stream)) == [b"s.old", b"s.own"]


async def test_an_expired_delete_marker_leaves_no_other_one(made: Streaming, world: World) -> None:
    stream = await made.create(
        "s",
        subjects=["s"],
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        subject_delete_marker_ttl=5 * SECOND,
    )
    await made.publish("s", b"1", block("Nats-TTL: 2"))
    world.clock.pass_seconds(3)
    await becomes(made, stream, b"")
    world.clock.pass_seconds(6)
    await becomes(made, stream)
    assert stream.last_seq == 2
    made, stream = await start_again(made, "s")
    world.clock.pass_seconds(6)
    await becomes(made, stream)
    assert stream.last_seq == 2
    made.close()


async def test_a_failed_deletion_is_retried(
    made: Streaming, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "RETRY_SECONDS", 0.01)
    stream = await made.create("s", subjects=["s"], allow_msg_ttl=True)
    await made.publish("s", b"1", block("Nats-TTL: 2"))
    await made.publish("s", b"2")
    fail_once(made, monkeypatch)
    world.clock.pass_seconds(3)
    await becomes(made, stream, b"2")


async def test_an_invalid_ttl_has_no_effect(made: Streaming, world: World) -> None:
    stream = await made.create("s", subjects=["s"], allow_msg_ttl=True)
    headers = [block("Nats-TTL: soon"), block("Nats-TTL: 2")]
    await stream.opened.log.append(Run(b"s", [b"1", b"2"], headers))
    made, stream = await start_again(made, "s")
    world.clock.pass_seconds(3)
    await becomes(made, stream, b"1")
    made.close()


async def test_messages_that_expire_together_are_deleted_together(
    made: Streaming, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "DUE_MAX", 3)
    stream = await made.create("s", subjects=["s"], allow_msg_ttl=True)
    for number in range(10):
        await made.publish("s", b"%d" % number, block("Nats-TTL: 2"))
    await stream.delete([4])
    world.clock.pass_seconds(3)
    await becomes(made, stream)


async def test_a_new_age_limit_applies_to_existing_messages(made: Streaming, world: World) -> None:
    stream = await made.create("s", subjects=["s"])
    watch = made.streams._served["s"].expiry
    await made.publish("s", b"1")
    world.clock.pass_seconds(100)
    watch.start()
    assert watch._task is None
    await made.publish("s", b"2")
    await made.streams.update(replace(stream.config, max_age=10 * SECOND, duplicate_window=SECOND))
    await becomes(made, stream, b"2")
    watch.stop()
    watch.stop()
    assert watch._task is None


@pytest.mark.parametrize(
    ("config", "headers"),
    [({"max_age": 3600 * SECOND}, ""), ({"allow_msg_ttl": True}, "Nats-TTL: 1h")],
)
async def test_messages_expire_after_the_time_of_day_jumps(
    made: Streaming, world: World, config: dict[str, Any], headers: str
) -> None:
    stream = await made.create("s", subjects=["s"], **config)
    for text in (b"1", b"2"):
        await made.publish("s", text, block(headers) if headers else b"")
    await becomes(made, stream, b"1", b"2")
    await asyncio.sleep(0.1)  # The task sleeps by now, until the deadline as it was.
    world.clock.us += 3_601_000_000

    async def gone() -> bool:
        return not stream.messages

    await eventually(gone)
