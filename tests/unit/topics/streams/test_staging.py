"""What batches share; what becomes of single ones is in test_batches.py."""

from __future__ import annotations

import asyncio
import time

import msgspec

from penstock.topics.streams.staging import BATCH_BYTES_MAX, STAGED_BYTES_MAX, Patience, Staging
from tests.eventually import eventually
from tests.unit.log.disks import Hand


def test_a_connection_that_ends_gives_up_what_it_began_and_nothing_else() -> None:
    staging, given_up = Staging(Hand()), list[str]()
    for owner, name in ((1, "a"), (1, "b"), (1, "c"), (2, "d")):
        staging.own(owner, name, lambda name=name: given_up.append(name))  # type: ignore[misc]
    staging.disown(1, "b")
    staging.disown(3, "x")
    staging.left(1)
    staging.left(1)
    assert given_up == ["a", "c"]
    staging.disown(2, "d")
    staging.left(2)
    assert given_up == ["a", "c"]


def test_what_is_given_up_is_told() -> None:
    staging, told = Staging(Hand()), list[tuple[bytes, ...]]()
    staging.tell("s", b"b", "timeout")
    staging.send = lambda *message: told.append(message)
    staging.tell("s", b"b\xff", "timeout")
    ((subject, reply, block, text),) = told
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


async def test_patience_ends_once_and_not_while_it_is_touched() -> None:
    ends: list[float] = []
    loop = asyncio.get_running_loop()
    patience = Patience(0.02, lambda: ends.append(loop.time()))
    # The loop does not turn here: by its first look the time is over, but for the touches.
    for _ in range(3):
        time.sleep(0.01)
        patience.touch()
        touched = loop.time()

    async def ended() -> bool:
        return bool(ends)

    await eventually(ended)
    assert len(ends) == 1
    assert ends[0] >= touched + 0.02


async def test_patience_that_is_stopped_never_ends() -> None:
    ends: list[bool] = []
    Patience(0.001, lambda: ends.append(True)).stop()
    await asyncio.sleep(0.02)
    assert ends == []


def test_one_batch_cannot_take_all_the_room() -> None:
    assert BATCH_BYTES_MAX * 2 <= STAGED_BYTES_MAX
