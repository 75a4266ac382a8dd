"""Tuning of the process: garbage collector, memory allocator and use of processors."""

from __future__ import annotations

import ctypes
import gc
import time
from typing import Final

THRESHOLDS: Final = (20_000, 50, 1000)
"""With Python's default of 700, collections take 1.4 us of the 11 us of a single message."""


def calm_collector() -> None:
    """Exclude loaded modules from garbage collection, and make collections rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


LARGE_BYTES: Final = 32 << 20
"""Larger blocks are returned to the system when they are freed; the C library's maximum."""
FREE_BYTES: Final = 128 << 20
"""Free memory at the end of the heap that is not returned to the system."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_memory() -> None:
    """Let the allocator reuse freed memory, up to a limit, instead of returning it to the system.

    A broker allocates and frees blocks of megabytes all the time; the system would clear every
    page again. Has no effect with C libraries other than glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, FREE_BYTES)


WAITED_SHARE_MAX: Final = 0.1
"""Waiting time, relative to processor time, above which other processes want the processors."""

REST_SHARE: Final = 3
"""Length of a pause, relative to the processor time of the work before."""


class CpuYield:
    """Pauses between pieces of work if other processes want the processors.

    A low priority alone still costs others caches, memory bandwidth and the time to get a processor
    back. Waiting for the disk counts as waiting for a processor.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._begun, self._worked = time.monotonic(), time.process_time()

    def pause(self) -> None:
        """Block for a while if the work since the last call had to wait for a processor."""
        worked = time.process_time() - self._worked
        waited = time.monotonic() - self._begun - worked
        if waited > worked * WAITED_SHARE_MAX:
            time.sleep(worked * REST_SHARE)
        self._begin()
