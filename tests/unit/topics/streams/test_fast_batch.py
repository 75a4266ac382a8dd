"""When acks of fast batches are due, and for how many messages."""

from __future__ import annotations

import pytest

from penstock.topics.streams.fast_batch import FLOW_MAX, FastBatch
from penstock.topics.streams.staging import Patience
from penstock.wire.jetstream.fast_batches import FastMessage, Operation


async def batch(flow: int, others: int = 0) -> FastBatch:
    patience = Patience(60, lambda: None)
    patience.stop()
    made = FastBatch(FastMessage(b"b", flow, True, 1, Operation.START), patience)
    made.begin(others)
    return made


@pytest.mark.parametrize(
    ("asked", "others", "flow"), [(10, 0, 10), (60_000, 0, FLOW_MAX), (10, 1, 1)]
)
async def test_who_is_alone_begins_as_it_asked(asked: int, others: int, flow: int) -> None:
    assert (await batch(asked, others)).flow == flow


async def test_an_ack_is_due_at_every_step_and_steps_that_were_passed_are_one() -> None:
    made = await batch(10)
    made.stored = 9
    assert not made.next_ack(1)
    made.stored = 10
    assert made.next_ack(1)
    assert (made.acked, made.flow) == (10, 10)
    made.stored = 45
    assert made.next_ack(1)
    assert made.acked == 40
    assert not made.next_ack(1)


async def test_a_batch_speeds_up_to_what_it_asked_for() -> None:
    made, flows = await batch(10, others=1), list[int]()
    for stored in (1, 3, 7, 15, 25):
        made.stored = stored
        assert made.next_ack(2)
        flows.append(made.flow)
    assert flows == [2, 4, 8, 10, 10]


async def test_a_batch_slows_down_to_its_share() -> None:
    made, flows = await batch(FLOW_MAX), list[int]()
    for _ in range(4):
        made.stored += made.flow
        assert made.next_ack(5)
        flows.append(made.flow)
    assert flows == [250, 125, 100, 100]
    made.stored += made.flow
    assert made.next_ack(FLOW_MAX * 2)
    assert made.flow == 50
