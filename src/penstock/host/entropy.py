"""Random numbers that need not be repeatable."""

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
    """32 characters that nobody else has."""
    return os.urandom(16).hex()


def random_bytes(count: int) -> bytes:
    """Bytes that nobody can guess."""
    return os.urandom(count)


def random_token(characters: int) -> str:
    """Letters and digits that nobody can guess."""
    return "".join(secrets.choice(_LETTERS) for _ in range(characters))
