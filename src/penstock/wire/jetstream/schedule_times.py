"""When scheduled messages are due: once `@at` a time, `@every` so long, or as cron says.

Times are microseconds since 1970. Intervals and cron count in whole seconds from the last time that
was due, or from now when that would be in the past already: what was missed is not made up for.
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
    """When a schedule fires again, and how that is written."""

    us: int
    text: bytes


@dataclass(frozen=True, slots=True)
class At:
    """Once."""

    us: int

    def first(self, stored_us: int, done_us: int) -> int:
        """When it fires first that was stored then, all that was due up to `done_us` aside."""
        return self.us

    def next(self, due_us: int, now_us: int) -> Next | None:
        """When it fires after it was due then; None is never again."""
        return None


@dataclass(frozen=True, slots=True)
class Every:
    """Again and again after an interval."""

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
    """As cron says."""

    cron: Cron

    def first(self, stored_us: int, done_us: int) -> int:
        return self._after(max(stored_us, done_us)).us

    def next(self, due_us: int, now_us: int) -> Next | None:
        found = self._after(due_us)
        return found if found.us >= now_us else self._after(_whole(now_us))

    def _after(self, us: int) -> Next:
        found = self.cron.after(us // SECOND_US)
        text = found.isoformat().replace("+00:00", "Z")
        return Next(int(found.timestamp()) * SECOND_US, text.encode())


Times = At | Every | Fields


def parse_times(text: str, zone: tzinfo | None) -> Times | None:
    """What a `Nats-Schedule` means; None is nothing at all. Raises ValueError.

    A time zone goes with cron only; without one it counts in UTC.
    """
    kind, space, rest = text.partition(" ")
    if space and kind in ("@at", "@every"):
        if zone is not None:
            raise ValueError(f"{kind} has no time zone of its own")
        return At(parse_time(rest) // 1000) if kind == "@at" else _every(rest)
    return Fields(Cron(PREDEFINED.get(text, text), zone or UTC)) if text else None


def _every(text: str) -> Every:
    ns = parse_duration(text)
    if ns < SECOND_NS:
        raise ValueError("an interval is at least a second")
    return Every(ns // 1000)


def _whole(us: int) -> int:
    """The nearest whole second; from a half on the next one."""
    return (us + SECOND_US // 2) // SECOND_US * SECOND_US
