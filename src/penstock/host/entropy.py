"""Random numbers, names and tokens of the system's random generator."""

from __future__ import annotations

import os
import secrets
import string
from typing import Final

_LETTERS: Final = string.ascii_letters + string.digits


def random_u32() -> int:
    """A number from 1 to 2**32 - 1."""
    return int.from_bytes(os.urandom(4), "little") or 1


def unique_name() -> str:
    """A unique name of 32 hexadecimal digits."""
    return os.urandom(16).hex()


def random_bytes(count: int) -> bytes:
    """Unpredictable bytes."""
    return os.urandom(count)


def random_token(characters: int) -> str:
    """Unpredictable letters and digits."""
    return "".join(secrets.choice(_LETTERS) for _ in range(characters))
