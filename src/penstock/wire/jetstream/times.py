"""Durations of the JetStream API, and timestamps of many messages as header values.

Durations in JSON are nanoseconds; in headers, statuses and ack payloads they are texts such as
`1m30s`. Times are RFC 3339 (`penstock.model.times`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from penstock.model.times import SECOND_NS, time_text, time_text_us
from penstock.wire.jetstream.errors import TTL_INVALID

_SECOND_US: Final = 1_000_000
ZERO_TIME: Final = "0001-01-01T00:00:00Z"
TTL_NEVER: Final = -1
TTL_MIN_NS: Final = SECOND_NS

_UNIT_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
}
_PART: Final = r"(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)"
DURATION_CHARACTERS_MAX: Final = 256
"""Longer texts are refused; every duration in nanoseconds has a far shorter one."""
_DURATION: Final = re.compile(rf"([+-]?)(0|(?:{_PART})+)")
_PARTS: Final = re.compile(r"(\d*)\.?(\d*)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS: Final = re.compile(r"\+?\d{1,12}")


def stamps(timestamps_us: Sequence[int]) -> list[bytes]:
    """The header values of a run's timestamps; many timestamps of a run are usually equal."""
    different = sorted(set(timestamps_us))
    if len(different) == 1:
        return [_stamp(different[0])] * len(timestamps_us)
    if len(different) * 2 > len(timestamps_us):
        return _each_stamp(timestamps_us)
    texts = dict(zip(different, _each_stamp(different), strict=True))
    return [texts[us] for us in timestamps_us]


@lru_cache(maxsize=64)
def _stamp(us: int) -> bytes:
    return time_text_us(us).encode()


def _each_stamp(timestamps_us: Sequence[int]) -> list[bytes]:
    if not timestamps_us:
        return []
    second = min(timestamps_us) // _SECOND_US
    first = second * _SECOND_US
    if max(timestamps_us) - first < _SECOND_US:
        lines = f"{_second_text(second)}.%06dZ\n" * len(timestamps_us)
        text = lines % tuple([us - first for us in timestamps_us])
    else:
        text = "".join(
            [f"{_second_text(us // _SECOND_US)}.{us % _SECOND_US:06d}Z\n" for us in timestamps_us]
        )
    while "0Z\n" in text:
        text = text.replace("0Z\n", "Z\n")
    return text.replace(".Z\n", "Z\n").encode().split(b"\n")[:-1]


@lru_cache(maxsize=64)
def _second_text(second: int) -> str:
    return time_text(second * SECOND_NS)[:-1]


def parse_duration(text: str) -> int:
    """Nanoseconds of a text such as `1h30m`, `1.5s` or `-300ms`; raises ValueError."""
    match = _DURATION.fullmatch(text) if len(text) <= DURATION_CHARACTERS_MAX else None
    if match is None:
        raise ValueError(f'invalid duration "{text[:DURATION_CHARACTERS_MAX]}"')
    total = 0
    for whole, fraction, unit in _PARTS.findall(match[2]):
        ns = _UNIT_NS[unit]
        total += int(whole or 0) * ns + int(fraction or 0) * ns // 10 ** len(fraction)
    if total >> 63:
        raise ValueError(f'invalid duration "{text}"')
    return -total if match[1] == "-" else total


def duration_text(ns: int) -> str:
    """The text of a duration, such as `1m30s`, `1.5s`, `300ms`, `0s`."""
    if ns < 0:
        return "-" + duration_text(-ns)
    for unit in ("ns", "µs", "ms"):
        if ns < _UNIT_NS[unit] * 1000:
            return _decimal(ns, _UNIT_NS[unit]) + unit if ns else "0s"
    minutes, ns = divmod(ns, 60 * SECOND_NS)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{text}{_decimal(ns, SECOND_NS)}s"


def parse_ttl(value: bytes) -> int:
    """Nanoseconds of a `Nats-TTL` header, TTL_NEVER for `never`; raises ApiError.

    A bare number is seconds; less than a second is refused.
    """
    text = value.decode("latin-1")
    if text == "never":
        return TTL_NEVER
    try:
        ns = int(text) * SECOND_NS if _SECONDS.fullmatch(text) else parse_duration(text)
    except ValueError:
        raise TTL_INVALID.error() from None
    if ns < TTL_MIN_NS:
        raise TTL_INVALID.error()
    return ns


def _decimal(amount: int, unit: int) -> str:
    whole, remainder = divmod(amount, unit)
    if not remainder:
        return str(whole)
    return f"{whole}.{remainder:0{len(str(unit)) - 1}d}".rstrip("0")
