from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap

import pytest

from penstock.host.memory import keep_memory

PROGRAM = """
    import resource
    from penstock.host.memory import keep_memory

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


def test_large_pieces_that_are_freed_are_used_again() -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    given_back, kept = map(int, subprocess.check_output(command, text=True).split())
    assert kept * 10 < given_back


def test_a_c_library_without_the_setting_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    keep_memory()
