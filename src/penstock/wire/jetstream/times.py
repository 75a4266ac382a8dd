"""Times and durations as the JetStream API writes them.

Times are RFC 3339 in UTC with up to nine decimals and no trailing zeros; on this side they are
integers: nanoseconds since 1970, or microseconds where the log says so. Durations in JSON are
nanoseconds; in headers, statuses and ack payloads they are texts such as `1m30s`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from functools import lru_cache
from typing import Final

from penstock.wire.jetstream.errors import TTL_INVALID

SECOND_NS: Final = 1_000_000_000
_SECOND_US: Final = 1_000_000
ZERO_TIME: Final = "0001-01-01T00:00:00Z"
TTL_NEVER: Final = -1
TTL_MIN_NS: Final = SECOND_NS

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_SECONDS: Final = 86_400
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,](\d+))?"
    r"(?:Z|([+-])([01]\d|2[0-3]):([0-5]\d))"
)
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
_PART: Final = r"(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)"
_DURATION: Final = re.compile(rf"([+-]?)(0|(?:{_PART})+)")
_PARTS: Final = re.compile(r"(\d*)\.?(\d*)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS: Final = re.compile(r"\+?\d{1,12}")


def time_text(ns: int) -> str:
    """`2026-11-15T19:43:26.420099096Z`."""
    seconds, fraction = divmod(ns, SECOND_NS)
    day, second = divmod(seconds, _DAY_SECONDS)
    clock = timedelta(seconds=second)
    text = f"{date.fromordinal(_EPOCH_DAY + day).isoformat()}T{clock!s:0>8}"
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else f"{text}Z"


def time_text_us(us: int) -> str:
    return time_text(us * 1000)


def stamps(timestamps_us: Sequence[int]) -> list[bytes]:
    """The same for a run of microseconds, as header values; in one run many are often equal."""
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


def parse_time(text: str) -> int:
    """Nanoseconds since 1970; digits past the ninth are dropped. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse it')
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    fraction, sign, zone_hour, zone_minute = found.groups()[6:]
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise ValueError(f'parsing time "{text}": day out of range') from error
    seconds = days * _DAY_SECONDS + hour * 3600 + minute * 60 + second
    if sign:
        offset = int(zone_hour) * 3600 + int(zone_minute) * 60
        seconds += offset if sign == "-" else -offset
    return seconds * SECOND_NS + int(f"{fraction or '':0<9}"[:9])


def parse_duration(text: str) -> int:
    """Nanoseconds of a text such as `1h30m`, `1.5s` or `-300ms`; raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f'invalid duration "{text}"')
    total = 0
    for whole, fraction, unit in _PARTS.findall(found[2]):
        ns = _UNIT_NS[unit]
        total += int(whole or 0) * ns + int(fraction or 0) * ns // 10 ** len(fraction)
    if total >> 63:
        raise ValueError(f'invalid duration "{text}"')
    return -total if found[1] == "-" else total


def duration_text(ns: int) -> str:
    """`1m30s`, `1.5s`, `300ms`, `0s`."""
    if ns < 0:
        return "-" + duration_text(-ns)
    for unit in ("ns", "µs", "ms"):
        if ns < _UNIT_NS[unit] * 1000:
            return _decimal(ns, _UNIT_NS[unit]) + unit if ns else "0s"
    minutes, rest = divmod(ns, 60 * SECOND_NS)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{text}{_decimal(rest, SECOND_NS)}s"


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
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0")
