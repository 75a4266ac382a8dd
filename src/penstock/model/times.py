"""Times as text, as RFC 3339 writes them, and as integers since 1970 in UTC.

Integers are nanoseconds; the names of functions that use microseconds end in `_us`.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

SECOND_NS: Final = 1_000_000_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_DAY_SECONDS: Final = 86_400
_SECOND_MIN: Final = (date.min.toordinal() - _EPOCH_DAY) * _DAY_SECONDS
_SECOND_MAX: Final = (date.max.toordinal() - _EPOCH_DAY + 1) * _DAY_SECONDS - 1
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,](\d+))?"
    r"(?:Z|([+-])([01]\d|2[0-3]):([0-5]\d))"
)


def time_text(ns: int) -> str:
    """A time without trailing zeros, such as `2026-11-15T19:43:26.420099096Z`."""
    seconds, fraction = divmod(ns, SECOND_NS)
    day, second = divmod(seconds, _DAY_SECONDS)
    clock = timedelta(seconds=second)
    text = f"{date.fromordinal(_EPOCH_DAY + day).isoformat()}T{clock!s:0>8}"
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else f"{text}Z"


def time_text_us(us: int) -> str:
    """A time without trailing zeros, such as `2026-11-15T19:43:26.42Z`."""
    return time_text(us * 1000)


def long_time_text_us(us: int) -> str:
    """A time that always has six decimals, such as `2026-11-15T19:43:26.420000Z`."""
    moment = _EPOCH + timedelta(microseconds=us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """Nanoseconds of an RFC 3339 time; digits past the ninth are dropped.

    Raises ValueError, in the words that nats-server uses for a time it cannot parse.
    """
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
    if not _SECOND_MIN <= seconds <= _SECOND_MAX:
        raise ValueError(f'parsing time "{text}": year outside of range [1,9999]')
    return seconds * SECOND_NS + int(f"{fraction or '':0<9}"[:9])


def parse_time_us(text: str) -> int:
    """Microseconds of a date and time in any form of ISO 8601; digits past the sixth are dropped.

    Raises ValueError for other texts, and for a time without a time zone.
    """
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        raise ValueError(f"{text!r} is not a date and time") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return (moment - _EPOCH) // timedelta(microseconds=1)
