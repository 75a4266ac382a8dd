from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from penstock.host import process
from penstock.host.process import REST_SHARE, THRESHOLDS, CpuYield, calm_collector, keep_memory


@pytest.fixture
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("as_before")
def test_loaded_objects_are_excluded_and_collections_are_rare() -> None:
    calm_collector()
    assert gc.get_threshold() == THRESHOLDS
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()


PROGRAM = """
    import resource
    from penstock.host.process import keep_memory

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            bytes(bytearray(4 << 20))
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    given_back = faults()
    keep_memory()
    faults()
    print(given_back, faults())
"""


def test_freed_large_blocks_are_reused() -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    given_back, retained = map(int, subprocess.check_output(command, text=True).split())
    assert retained * 10 < given_back


def test_keep_memory_has_no_effect_without_mallopt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    keep_memory()


class Times:
    """Replaces the module `time`."""

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
    monkeypatch.setattr(process, "time", made)
    return made


def test_work_that_did_not_wait_is_followed_by_no_pause(times: Times) -> None:
    cpu_yield = CpuYield()
    for _ in range(3):
        times.work(2, waited=0.1)
        cpu_yield.pause()
    assert times.slept == []


def test_each_piece_of_work_that_waited_is_followed_by_a_pause(times: Times) -> None:
    cpu_yield = CpuYield()
    for waited in (1, 0, 0.5):
        times.work(2, waited)
        cpu_yield.pause()
    assert times.slept == [2 * REST_SHARE] * 2


def test_processor_time_of_several_threads_is_not_waiting(times: Times) -> None:
    cpu_yield = CpuYield()
    times.work(2, waited=-0.8)
    cpu_yield.pause()
    assert times.slept == []
