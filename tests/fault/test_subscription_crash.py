"""A broker that is killed at any moment while it publishes and delivers, again and again.

Its subscriptions get everything that was acknowledged from their start on, at least once: a life
goes on where the one before it was, or earlier, and never behind something it has not delivered.
"""

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fault.subscriber import LATE, PACES
from tests.fault.telling import TellingProcess

LIVES = 8


class Deliveries:
    """What one subscription got over all lives."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.first: int | None = None
        self.next = 0
        """Behind everything that was delivered."""
        self._start = 0
        self.got: dict[int, str] = {}
        self.again = 0

    def add(self, life: TellingProcess) -> None:
        """Take in a life; raises AssertionError when something was passed over or went back."""
        for _, _, start in life.facts("starts", self._name):
            if self.first is None:
                self.first = self.next = start
            assert self._start <= start <= self.next
            self._start, self.again = start, self.again + self.next - start
            self._add(start, life)

    def _add(self, expected: int, life: TellingProcess) -> None:
        for _, _, first, texts in life.facts("delivered", self._name):
            assert first == expected
            for offset, text in enumerate(texts, first):
                assert self.got.setdefault(offset, text) == text
            expected = first + len(texts)
        self.next = max(self.next, expected)


@pytest.mark.feature("T21", "T22", "T23")
def test_subscriptions_get_everything_at_least_once_however_often_the_broker_is_killed(
    tmp_path: Path,
) -> None:
    chance = random.Random(11)
    acked: dict[int, str] = {}
    deliveries = {name: Deliveries(name) for name in PACES}
    with ExitStack() as stack:
        for number in range(LIVES):
            errors = tmp_path / f"errors-{number}.txt"
            life = TellingProcess("tests.fault.subscriber", str(tmp_path / "data"), errors)
            stack.enter_context(life)
            if number < LIVES - 1:
                live_and_die(life, chance)
            else:
                life.wait_for_more("acked")
                life.stop()
            for _, first, texts in life.facts("acked"):
                for offset, text in enumerate(texts, first):
                    assert acked.setdefault(offset, text) == text, "an offset was given twice"
            for delivered in deliveries.values():
                delivered.add(life)
    for name, delivered in deliveries.items():
        assert delivered.first is not None
        wanted = {offset: text for offset, text in acked.items() if offset >= delivered.first}
        assert wanted.items() <= delivered.got.items()
        assert name == LATE or delivered.again, "no life ended with positions that were not saved"


def live_and_die(life: TellingProcess, chance: random.Random) -> None:
    """Kill it at some moment: soon after its start, or in the middle of everything."""
    if chance.random() < 0.8:
        for name in PACES.keys() - {LATE}:
            life.wait_for("delivered", name)
        life.wait_for("starts", LATE)
    else:
        life.wait_for("acked")
    time.sleep(chance.random() * 0.3)
    life.kill()
