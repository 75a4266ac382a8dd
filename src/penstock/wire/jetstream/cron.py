"""Schedules of six fields, as cron has them: second, minute, hour, day, month, day of the week.

A field is a list of ranges with steps: `5`, `1-5`, `*/15`, `10/5`, `mon,wed-fri`. When both the day
and the day of the week are restricted, either is enough.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final

YEARS_MAX: Final = 5
"""A schedule that does not fire within this time is invalid."""
_NUMBER: Final = re.compile(r"\+?[0-9]{1,18}")
_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True)
class _Field:
    """The values that match a field; `free` if it is written as a star."""

    values: frozenset[int]
    free: bool


@dataclass(frozen=True, slots=True)
class _Bounds:
    low: int
    high: int
    names: Mapping[str, int]


_BOUNDS: Final = (
    _Bounds(0, 59, {}),
    _Bounds(0, 59, {}),
    _Bounds(0, 23, {}),
    _Bounds(1, 31, {}),
    _Bounds(1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Bounds(0, 6, {name: number for number, name in enumerate(_DAYS)}),
)


class Cron:
    """A schedule in a time zone."""

    def __init__(self, text: str, zone: tzinfo) -> None:
        """Raises ValueError, also if the schedule never fires."""
        fields = text.split()
        if len(fields) != len(_BOUNDS):
            raise ValueError(f"a schedule has {len(_BOUNDS)} fields, not {len(fields)}")
        parsed = [_field(field, bounds) for field, bounds in zip(fields, _BOUNDS, strict=True)]
        self._second, self._minute, self._hour, self._day, self._month, self._weekday = parsed
        self._zone = zone
        self.after(0)

    def after(self, second: int) -> datetime:
        """The first time after a second since 1970; raises ValueError if there is none soon."""
        at = datetime.fromtimestamp(second + 1, self._zone)
        last_year = at.year + YEARS_MAX
        while at.year <= last_year:
            next_ = self._skip(at)
            if next_ is None:
                return at
            at = datetime.fromtimestamp(next_, self._zone)
        raise ValueError(f"no time within {YEARS_MAX} years fits the schedule")

    def _skip(self, at: datetime) -> int | None:
        """The next second that may match, or None if `at` matches. An hour is 3600 seconds."""
        now = int(at.timestamp())
        if at.month not in self._month.values:
            return _midnight(at.replace(day=1) + timedelta(days=32), now, day=1)
        if not self._fits_day(at):
            return _midnight(at + timedelta(days=1), now, day=None)
        if at.hour not in self._hour.values:
            return now + 3600 - at.minute * 60 - at.second
        if at.minute not in self._minute.values:
            return now + 60 - at.second
        return None if at.second in self._second.values else now + 1

    def _fits_day(self, at: datetime) -> bool:
        day = at.day in self._day.values
        weekday = at.isoweekday() % 7 in self._weekday.values
        free = self._day.free or self._weekday.free
        return day and weekday if free else day or weekday


def _midnight(of: datetime, behind: int, *, day: int | None) -> int:
    """The second at which a day begins, after `behind` even if clocks are set back then."""
    begins = of.replace(day=day or of.day, hour=0, minute=0, second=0, fold=0)
    return max(int(begins.timestamp()), behind + 1)


def _field(text: str, bounds: _Bounds) -> _Field:
    ranges = [_range(part, bounds) for part in text.split(",") if part]
    values = frozenset(value for part in ranges for value in part.values)
    if not values:
        raise ValueError(f"{text!r} means no value")
    return _Field(values, any(part.free for part in ranges))


def _range(text: str, bounds: _Bounds) -> _Field:
    part, *steps = text.split("/")
    low, *highs = part.split("-")
    if len(steps) > 1:
        raise ValueError(f"too many slashes: {text!r}")
    step = _number(steps[0], {}) if steps else 1
    free = low in ("*", "?")
    if free:
        first, last = bounds.low, bounds.high
    elif len(highs) > 1:
        raise ValueError(f"too many hyphens: {text!r}")
    else:
        first = _number(low, bounds.names)
        last = _number(highs[0], bounds.names) if highs else bounds.high if steps else first
    if not bounds.low <= first <= last <= bounds.high or step < 1:
        raise ValueError(f"{text!r} is not within {bounds.low}-{bounds.high}")
    return _Field(frozenset(range(first, last + 1, step)), free and step == 1)


def _number(text: str, names: Mapping[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no number")
    return int(text)
