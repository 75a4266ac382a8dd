"""What all batches share: their owners, their limits and their time-outs."""

from __future__ import annotations

import asyncio
import time

import msgspec

from penstock.streams.open_batches import (
    BATCH_BYTES_MAX,
    STAGED_BYTES_MAX,
    IdleTimeout,
    OpenBatches,
)
from tests.eventually import eventually
from tests.unit.log.disks import Hand


def test_a_closed_connection_abandons_its_own_batches_only() -> None:
    batches, abandoned = OpenBatches(Hand(), lambda *message: None), list[str]()
    for owner, name in ((1, "a"), (1, "b"), (1, "c"), (2, "d")):
        batches.own(owner, name, lambda name=name: abandoned.append(name))  # type: ignore[misc]
    batches.disown(1, "b")
    batches.disown(3, "x")
    batches.abandon_all_of(1)
    batches.abandon_all_of(1)
    assert abandoned == ["a", "c"]
    batches.disown(2, "d")
    batches.abandon_all_of(2)
    assert abandoned == ["a", "c"]


def test_an_advisory_reports_an_abandoned_batch() -> None:
    sent = list[tuple[bytes, ...]]()
    batches = OpenBatches(Hand(), lambda *message: sent.append(message))
    batches.publish_abandoned("s", b"b\xff", "timeout")
    ((subject, reply, block, text),) = sent
    assert (subject, reply, block) == (b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.s", b"", b"")
    document = msgspec.json.decode(text)
    assert len(document.pop("id")) == 22
    assert document.pop("timestamp").endswith("Z")
    assert document == {
        "type": "io.nats.jetstream.advisory.v1.stream_batch_abandoned",
        "stream": "s",
        "batch": "b\ufffd",
        "reason": "timeout",
    }


async def test_a_timeout_fires_once_and_not_before_the_time_since_its_restart() -> None:
    ends: list[float] = []
    loop = asyncio.get_running_loop()
    timeout = IdleTimeout(0.02, lambda: ends.append(loop.time()))
    # The loop does not run here: without the restarts, the time is over at the first check.
    for _ in range(3):
        time.sleep(0.01)
        timeout.restart()
        restarted = loop.time()

    async def ended() -> bool:
        return bool(ends)

    await eventually(ended)
    assert len(ends) == 1
    assert ends[0] >= restarted + 0.02


async def test_a_stopped_timeout_never_fires() -> None:
    ends: list[bool] = []
    IdleTimeout(0.001, lambda: ends.append(True)).stop()
    await asyncio.sleep(0.02)
    assert ends == []


def test_one_batch_cannot_use_all_the_memory_for_batches() -> None:
    assert BATCH_BYTES_MAX * 2 <= STAGED_BYTES_MAX
