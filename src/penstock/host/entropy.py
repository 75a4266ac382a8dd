"""Random numbers that need not be repeatable."""

from __future__ import annotations

import os


def random_u32() -> int:
    """A number from 1 to 2**32 - 1."""
    return int.from_bytes(os.urandom(4), "little") or 1


def unique_name() -> str:
    """32 characters that nobody else has."""
    return os.urandom(16).hex()
