from __future__ import annotations

import pytest

from penstock.host import giving_way
from penstock.host.giving_way import REST_SHARE, GivingWay


class Times:
    """In the place of the module `time`."""

    def __init__(self) -> None:
        self.now = self.worked = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.worked

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def work(self, seconds: float, waited: float) -> None:
        self.worked += seconds
        self.now += seconds + waited


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    made = Times()
    monkeypatch.setattr(giving_way, "time", made)
    return made


def test_who_is_alone_goes_on_at_once(times: Times) -> None:
    way = GivingWay()
    for _ in range(3):
        times.work(2, waited=0.1)
        way.rest()
    assert times.slept == []


def test_who_had_to_wait_rests_and_every_piece_of_work_counts_for_itself(times: Times) -> None:
    way = GivingWay()
    for waited in (1, 0, 0.5):
        times.work(2, waited)
        way.rest()
    assert times.slept == [2 * REST_SHARE] * 2


def test_work_of_several_threads_is_no_wait(times: Times) -> None:
    way = GivingWay()
    times.work(2, waited=-0.8)
    way.rest()
    assert times.slept == []
