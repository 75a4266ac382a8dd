"""Header fields of scheduled messages: parsing, checks, and the headers of produced messages.

A schedule is a message that stays in the stream and whose headers say when to store which other
message. The message that it produces names the schedule and the time when it fires next, or says
that it has ended; clients end a schedule with such a message, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from penstock.model.subjects import Filter, valid_subject
from penstock.streams.appender import Appender
from penstock.streams.publish_fields import SCHEDULE_PREFIX
from penstock.streams.stream import Stream
from penstock.wire import headers
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.schedule_times import Next, Times, parse_times
from penstock.wire.jetstream.stream_config import StreamConfig
from penstock.wire.jetstream.times import parse_ttl

SCHEDULE: Final = b"Nats-Schedule"
TARGET: Final = b"Nats-Schedule-Target"
SOURCE: Final = b"Nats-Schedule-Source"
TTL: Final = b"Nats-Schedule-TTL"
ROLLUP: Final = b"Nats-Schedule-Rollup"
TIME_ZONE: Final = b"Nats-Schedule-Time-Zone"
NEXT: Final = b"Nats-Schedule-Next"
SCHEDULER: Final = b"Nats-Scheduler"
PURGE: Final = b"purge"
"""Replaces the next time when the schedule has ended."""
LOCAL: Final = Path("/etc/localtime")
_SUBJECT: Final = b"sub"
_DROPPED: Final = (SCHEDULE, b"Nats-Expected-")
_DROPPED_NAMES: Final = frozenset({b"Nats-Msg-Id", b"Nats-TTL", b"Nats-Rollup"})


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule that a message requests."""

    times: Times
    target: bytes
    source: bytes
    """Subject whose last message is produced instead of the schedule's own content; empty if
    none.
    """
    ttl: bytes
    rollup: bytes


def schedule_of(block: bytes) -> Schedule | None:
    """Parse the schedule of a header block; raises ApiError if it is invalid."""
    zone_name = headers.get(block, TIME_ZONE)
    zone = None if zone_name is None else _zone(zone_name.decode("latin-1"))
    try:
        times = parse_times((headers.get(block, SCHEDULE) or b"").decode("latin-1"), zone)
    except (ValueError, OverflowError):
        raise errors.SCHEDULE_PATTERN_INVALID.error() from None
    if times is None:
        return None
    target, source, ttl, rollup = (
        headers.get(block, name) or b"" for name in (TARGET, SOURCE, TTL, ROLLUP)
    )
    return Schedule(times, target, source, ttl, rollup)


def ended_by(block: bytes) -> bytes:
    """The subject of the schedule that a message ends; empty if it ends none."""
    if SCHEDULE_PREFIX not in block or headers.get(block, NEXT) != PURGE:
        return b""
    return headers.get(block, SCHEDULER) or b""


def as_stored(block: bytes, config: StreamConfig) -> bytes:
    """The header block as stored: a schedule rolls up the one before it on its subject."""
    if not config.allow_msg_schedules or not _is_schedule(block):
        return block
    if headers.get(block, b"Nats-Rollup"):
        return block
    return headers.with_fields(block, [(b"Nats-Rollup", _SUBJECT)])


def produced(schedule: Schedule, subject: bytes, block: bytes, next_: Next | None) -> bytes:
    """The header block of a message that a schedule on `subject` produces from a content's
    block.
    """
    fields = [(SCHEDULER, subject), (NEXT, PURGE if next_ is None else next_.text)]
    if schedule.ttl:
        fields.append((b"Nats-TTL", schedule.ttl))
    if schedule.rollup:
        fields.append((b"Nats-Rollup", schedule.rollup))
    return headers.with_fields(_content(block), fields)


async def check(stream: Stream, appender: Appender, subject: bytes, block: bytes) -> None:
    """Raise ApiError if the stream does not support what a message requests of schedules."""
    config = stream.config
    try:
        schedule = schedule_of(block)
    except ApiError:
        if config.allow_msg_schedules:
            raise
        raise errors.SCHEDULES_DISABLED.error() from None
    if schedule is not None:
        _check_schedule(config, schedule, subject, headers.get(block, b"Nats-Rollup"))
    next_, scheduler = headers.get(block, NEXT), headers.get(block, SCHEDULER)
    if not next_ and not scheduler:
        return
    if next_ != PURGE or not scheduler or scheduler == subject or not valid_subject(scheduler):
        raise errors.SCHEDULER_INVALID.error()
    if not config.allow_msg_schedules:
        raise errors.SCHEDULES_DISABLED.error()
    last = await appender.last_sequence(scheduler)
    found = await stream.get(last - 1) if last else None
    if found is not None and not all(map(_is_schedule, found.headers or [b""] * found.count)):
        raise errors.SCHEDULER_INVALID.error()


def _check_schedule(
    config: StreamConfig, schedule: Schedule, subject: bytes, rollup: bytes | None
) -> None:
    target, source = schedule.target, schedule.source
    if not config.allow_msg_schedules:
        raise errors.SCHEDULES_DISABLED.error()
    if schedule.ttl:
        _check_ttl(schedule.ttl)
    if schedule.rollup not in (b"", _SUBJECT):
        raise errors.SCHEDULE_ROLLUP_INVALID.error()
    if schedule.ttl and not config.allow_msg_ttl:
        raise errors.TTL_DISABLED.error()
    if not valid_subject(target) or target == subject:
        raise errors.SCHEDULE_TARGET_INVALID.error()
    if source and (not valid_subject(source) or source in (target, subject)):
        raise errors.SCHEDULE_SOURCE_INVALID.error()
    if not _stores(config.subjects, target):
        raise errors.SCHEDULE_TARGET_INVALID.error()
    if source and not _stores(config.subjects, source):
        raise errors.SCHEDULE_SOURCE_INVALID.error()
    if rollup not in (None, b"", _SUBJECT):
        raise errors.SCHEDULE_ROLLUP_INVALID.error()


def _check_ttl(ttl: bytes) -> None:
    try:
        parse_ttl(ttl)
    except ApiError:
        raise errors.SCHEDULE_TTL_INVALID.error() from None


def _stores(subjects: Iterable[str], subject: bytes) -> bool:
    return any(Filter.parse(own.encode()).matches(subject) for own in subjects)


def _is_schedule(block: bytes) -> bool:
    return SCHEDULE_PREFIX in block and bool(headers.get(block, SCHEDULE))


def _content(block: bytes) -> bytes:
    """The block without fields that only concern the publish of the original message."""
    if not block:
        return block
    first, *lines = block.rstrip(b"\r\n").split(b"\r\n")
    named = ((line.partition(b":")[0].strip(), line) for line in lines)
    content = [
        line for name, line in named if not name.startswith(_DROPPED) and name not in _DROPPED_NAMES
    ]
    return b"\r\n".join([first, *content]) + b"\r\n\r\n"


def _zone(name: str) -> tzinfo:
    try:
        return _local_zone() if name == "Local" else ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise errors.SCHEDULE_TIME_ZONE_INVALID.error() from None


def _local_zone() -> tzinfo:
    if os.environ.get("TZ"):
        return ZoneInfo(os.environ["TZ"])
    if not LOCAL.exists():
        return UTC
    with LOCAL.open("rb") as zone:
        return ZoneInfo.from_file(zone)
