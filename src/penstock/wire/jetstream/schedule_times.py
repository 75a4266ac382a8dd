"""The times of scheduled messages: once `@at` a time, `@every` interval, or by a cron schedule.

Times are microseconds since 1970. Intervals and cron count in whole seconds from the last due time,
or from now if the result would be in the past: missed times are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Final

from penstock.model.times import SECOND_NS, parse_time, time_text
from penstock.wire.jetstream.cron import Cron
from penstock.wire.jetstream.times import parse_duration

SECOND_US: Final = 1_000_000
PREDEFINED: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}


@dataclass(frozen=True, slots=True)
class Next:
    """The next time of a schedule, and its text."""

    us: int
    text: bytes


@dataclass(frozen=True, slots=True)
class At:
    """Fires once."""

    us: int

    def first(self, stored_us: int, done_us: int) -> int:
        """The first time after `done_us` of a schedule that was stored at a time."""
        return self.us

    def next(self, due_us: int, now_us: int) -> Next | None:
        """The time after a due time; None if the schedule does not fire again."""
        return None


@dataclass(frozen=True, slots=True)
class Every:
    """Fires after every interval."""

    interval_us: int

    def first(self, stored_us: int, done_us: int) -> int:
        first = _whole(stored_us) + self.interval_us
        if first > done_us:
            return first
        step = _whole(self.interval_us)
        return first + ((done_us - first) // step + 1) * step

    def next(self, due_us: int, now_us: int) -> Next | None:
        us = _whole(due_us) + self.interval_us
        if us < now_us:
            us = _whole(now_us) + self.interval_us
        return Next(us, time_text(us * 1000).encode())


@dataclass(frozen=True, slots=True)
class Fields:
    """Fires by a cron schedule."""

    cron: Cron

    def first(self, stored_us: int, done_us: int) -> int:
        return self._after(max(stored_us, done_us)).us

    def next(self, due_us: int, now_us: int) -> Next | None:
        time = self._after(due_us)
        return time if time.us >= now_us else self._after(_whole(now_us))

    def _after(self, us: int) -> Next:
        time = self.cron.after(us // SECOND_US)
        text = time.isoformat().replace("+00:00", "Z")
        return Next(int(time.timestamp()) * SECOND_US, text.encode())


Times = At | Every | Fields


def parse_times(text: str, zone: tzinfo | None) -> Times | None:
    """Parse a `Nats-Schedule`; None if it is empty. Raises ValueError.

    A time zone applies to cron only, whose default is UTC.
    """
    kind, space, argument = text.partition(" ")
    if space and kind in ("@at", "@every"):
        if zone is not None:
            raise ValueError(f"{kind} has no time zone of its own")
        return At(parse_time(argument) // 1000) if kind == "@at" else _every(argument)
    return Fields(Cron(PREDEFINED.get(text, text), zone or UTC)) if text else None


def _every(text: str) -> Every:
    ns = parse_duration(text)
    if ns < SECOND_NS:
        raise ValueError("an interval is at least a second")
    return Every(ns // 1000)


def _whole(us: int) -> int:
    """The nearest whole second; a half is rounded up."""
    return (us + SECOND_US // 2) // SECOND_US * SECOND_US
