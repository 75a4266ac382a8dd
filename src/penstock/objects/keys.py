"""Which keys are allowed: those that mean the same object in every store, and never leave the root.

Some clients trim spaces and merge slashes, some servers normalise Unicode, file systems have `..`
and short names. A key that could be taken for another is refused here before anything sees it.
"""

from __future__ import annotations

import re
from typing import Final
from unicodedata import is_normalized

from penstock.objects.interface import KeyInvalid

KEY_BYTES_MAX: Final = 896
PREFIX_BYTES_MAX: Final = 127
"""With the slash between them, prefix and key stay within the 1024 bytes that stores take."""
SEGMENT_BYTES_MAX: Final = 220
"""File systems take 255; the rest is room for the name of a file that is still being written."""

RESERVED: Final = ".penstock-"
"""Start of names that stores use for themselves."""

PROBE_PREFIX: Final = "penstock-probe/"

_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


def check_key(key: str) -> None:
    """Raises KeyInvalid."""
    if _FORBIDDEN.search(key):
        raise KeyInvalid(repr(key), "it has a control character, a backslash or half a character")
    if not is_normalized("NFC", key):
        raise KeyInvalid(repr(key), "it is not in Unicode's normal form C")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise KeyInvalid(f"{key[:40]}...", f"it is longer than {KEY_BYTES_MAX} bytes")
    for segment in key.split("/"):
        _check_segment(key, segment)


def check_prefix(prefix: str) -> None:
    """Raises KeyInvalid unless a valid key can start with `prefix`, which may be empty."""
    check_key(f"{prefix}x")


def _check_segment(key: str, segment: str) -> None:
    if segment in ("", ".", ".."):
        raise KeyInvalid(repr(key), f"{segment!r} is no name between two slashes")
    if segment != segment.strip():
        raise KeyInvalid(repr(key), f"{segment!r} starts or ends with white space")
    if segment.startswith(RESERVED):
        raise KeyInvalid(repr(key), f"names that start with {RESERVED} are reserved")
    if len(segment.encode()) > SEGMENT_BYTES_MAX:
        raise KeyInvalid(f"{key[:40]}...", f"a name in it is over {SEGMENT_BYTES_MAX} bytes")
