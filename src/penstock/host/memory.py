"""Memory that was freed is kept for what comes next, up to a bound.

The C library gives large pieces back to the system at once, and gets every page of the next one
from there again, cleared. A broker reads and encodes megabytes at a time, over and over.
"""

from __future__ import annotations

import ctypes
from typing import Final

LARGE_BYTES: Final = 32 << 20
"""Only larger pieces than this are given back one by one; the C library allows no more."""
KEPT_BYTES: Final = 128 << 20
"""So much may be free at the end of the heap."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_memory() -> None:
    """Where the C library knows no such thing, nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
