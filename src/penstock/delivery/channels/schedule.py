"""When a failed delivery is tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import SystemRandom
from typing import Final

RETRY_AFTER_SECONDS_MAX: Final = 86_400
"""No receiver can put a delivery off for longer."""
JITTER: Final = 0.1
"""Up to this share of a delay is added to it: what failed together is not tried together."""

_random: Final = SystemRandom()


def delay_seconds(delays: Sequence[float], attempt: int) -> float:
    """Before retry number `attempt`, from 1: from the list, then ever longer by its last one."""
    if attempt < len(delays):
        return delays[attempt - 1]
    return (attempt - len(delays) + 1) * delays[-1]


def with_jitter(seconds: float, chance: Callable[[], float] = _random.random) -> float:
    """The delay and a little more."""
    return seconds * (1 + JITTER * chance())


def retry_after(value: str, now_us: int) -> float | None:
    """The seconds that a Retry-After header asks for, however it says so; None when it is none."""
    value = value.strip()
    if value.isascii() and value.isdecimal():
        return float(min(int(value[:12]), RETRY_AFTER_SECONDS_MAX))
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = moment.timestamp() - now_us / 1e6
    return min(max(seconds, 0.0), float(RETRY_AFTER_SECONDS_MAX))
