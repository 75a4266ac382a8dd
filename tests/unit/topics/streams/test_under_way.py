"""Which subjects have messages that are not durable yet."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock.model.run import Run
from penstock.topics.streams import under_way
from penstock.topics.streams.under_way import UnderWay
from tests.unit.tiers.core import World
from tests.unit.topics.streaming import Streaming, block, stream_all


@pytest_asyncio.fixture
async def made(world: World) -> AsyncIterator[Streaming]:
    streaming = await stream_all(world)
    yield streaming
    streaming.close()


async def test_a_subject_is_under_way_until_its_message_is_durable(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_rollup_hdrs=True)
    known = stream.keeper.under_way
    assert known is not None
    one = stream.log.append(Run(b"s.1", [b"x"], partition=stream.partition))
    two = stream.log.append(Run([b"s.2", b"s.3"], [b"x", b"x"], partition=stream.partition))
    assert [known.has(b"s.%d" % number) for number in (1, 2, 3, 4)] == [True, True, True, False]
    await one
    await two
    assert not any(known.has(b"s.%d" % number) for number in (1, 2, 3, 4))


async def test_what_was_under_way_before_may_be_of_any_subject(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"])
    assert stream.keeper.under_way is None
    stored = stream.log.append(Run(b"s.1", [b"x"], partition=stream.partition))
    known = UnderWay(stream.log, stream.partition)
    assert known.has(b"s.2")
    await stored
    assert not known.has(b"s.1")


async def test_what_is_durable_is_forgotten(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_way, "SUBJECTS_MAX", 10)
    stream = await made.create("s", subjects=["s.>"], allow_rollup_hdrs=True)
    known = stream.keeper.under_way
    assert known is not None
    for number in range(100):
        await stream.log.publish(Run(b"s.%d" % number, [b"x"], partition=stream.partition))
    assert len(known._stops) <= 11


async def test_a_roll_up_finds_what_is_durable_and_what_is_not(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_rollup_hdrs=True)
    await made.publish("s.1", b"durable")
    stream.log.append(Run(b"s.1", [b"under way"], partition=stream.partition))
    stream.log.append(Run(b"s.2", [b"another"], partition=stream.partition))
    await made.publish("s.1", b"last", block("Nats-Rollup: sub"))
    texts = [text async for rows in stream.rows_from(0, 100) for text in rows.payloads]
    assert texts == [b"another", b"last"]
