"""The order in which consumers are delivered to."""

from __future__ import annotations

import pytest

from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.target import Target
from penstock.delivery.channels.turns import Turns
from tests.unit.delivery.channels.test_target import CHANNEL, CONSUMER

pytestmark = pytest.mark.feature("C05")


def target(running: int = 0) -> Target:
    made = Target(CHANNEL, CONSUMER, None, ChannelSettings())  # type: ignore[arg-type]
    made.running = running
    return made


def test_consumers_take_turns() -> None:
    turns, targets = Turns(3), [target() for _ in range(3)]
    for each in targets:
        turns.add(each)
    assert [turns.take(0) for _ in range(4)] == [*targets, None]


def test_a_consumer_without_calls_is_before_one_with_calls() -> None:
    turns, idle, busy = Turns(8), target(), target(1)
    turns.add(busy)
    turns.add(idle)
    assert [turns.take(1), turns.take(2)] == [idle, busy]


def test_the_last_quarter_of_the_workers_serves_consumers_without_calls() -> None:
    turns, idle, busy = Turns(8), target(), target(6)
    turns.add(busy)
    assert turns.take(6) is None
    turns.add(idle)
    assert turns.take(7) is idle
    assert turns.take(8) is None
    assert turns.take(5) is busy


def test_a_waiting_consumer_whose_calls_end_counts_as_one_without_calls() -> None:
    turns, waiting = Turns(8), target(1)
    turns.add(waiting)
    turns.ended(waiting)
    assert turns.take(7) is None
    waiting.running = 0
    turns.ended(waiting)
    assert turns.take(7) is waiting
    assert turns.take(0) is None
    turns.ended(waiting)
    assert turns.take(0) is None
