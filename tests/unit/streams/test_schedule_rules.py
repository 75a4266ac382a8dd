"""Header fields of schedules; the conformance suite compares the replies with nats-server."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from penstock.streams import schedule_rules
from penstock.streams.schedule_rules import (
    Schedule,
    as_stored,
    ended_by,
    produced,
    schedule_of,
)
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.schedule_times import At, Every, Fields, Next
from penstock.wire.jetstream.stream_config import StreamConfig, normalised
from tests.broker.storage import World
from tests.broker.streams import block, stream_all

CONFIG = normalised(StreamConfig(name="s", allow_msg_schedules=True))
HOURLY = "Nats-Schedule: @hourly"


def test_every_schedule_field_is_parsed() -> None:
    told = block(
        "Nats-Schedule: @every 5s",
        "Nats-Schedule-Target: t",
        "Nats-Schedule-Source: o",
        "Nats-Schedule-TTL: 5m",
        "Nats-Schedule-Rollup: sub",
    )
    schedule = schedule_of(told)
    assert schedule == Schedule(Every(5_000_000), b"t", b"o", b"5m", b"sub")
    assert schedule_of(block("Nats-Schedule-Target: t")) is None
    assert schedule_of(block("Nats-Schedule: ")) is None


def test_a_time_zone_is_looked_up_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def zone(name: str) -> object:
        schedule = schedule_of(block(HOURLY, f"Nats-Schedule-Time-Zone: {name}"))
        assert schedule is not None
        assert isinstance(schedule.times, Fields)
        return schedule.times.cron._zone

    assert zone("Asia/Tokyo") == ZoneInfo("Asia/Tokyo")
    assert zone("UTC") == ZoneInfo("UTC")
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    assert zone("Local") == ZoneInfo("Asia/Kolkata")
    monkeypatch.delenv("TZ")
    local = tmp_path / "localtime"
    local.write_bytes(files("tzdata").joinpath("zoneinfo/Asia/Tokyo").read_bytes())
    monkeypatch.setattr(schedule_rules, "LOCAL", local)
    here = zone("Local")
    assert isinstance(here, ZoneInfo)
    assert datetime(2026, 11, 16, tzinfo=here).isoformat() == "2026-11-16T00:00:00+09:00"
    monkeypatch.setattr(schedule_rules, "LOCAL", tmp_path / "nowhere")
    assert zone("Local") is UTC


@pytest.mark.parametrize(
    "name", ["", "Europe/Nowhere", "Europe", "../etc/passwd", "+02:00", "/etc"]
)
def test_an_unknown_time_zone_is_refused(name: str) -> None:
    with pytest.raises(ApiError) as refused:
        schedule_of(block(HOURLY, f"Nats-Schedule-Time-Zone: {name}"))
    assert refused.value.err_code == errors.SCHEDULE_TIME_ZONE_INVALID.err_code


def test_a_schedule_is_stored_with_a_roll_up() -> None:
    assert as_stored(block(HOURLY), CONFIG) == block(HOURLY, "Nats-Rollup: sub")
    for told in (block(HOURLY, "Nats-Rollup: all"), block("Nats-Scheduler: s"), b""):
        assert as_stored(told, CONFIG) == told
    assert as_stored(block(HOURLY), replace(CONFIG, allow_msg_schedules=False)) == block(HOURLY)


def test_only_a_purge_ends_a_schedule() -> None:
    assert ended_by(block("Nats-Schedule-Next: purge", "Nats-Scheduler: s.a")) == b"s.a"
    assert ended_by(block("Nats-Schedule-Next: 2026-11-16T00:00:00Z", "Nats-Scheduler: s")) == b""
    assert ended_by(block("Nats-Scheduler: s.a")) == b""
    assert ended_by(b"") == b""


def test_a_produced_message_has_only_the_content_fields() -> None:
    told = block(
        "One: 1",
        HOURLY,
        "Nats-Schedule-Target: t",
        "Nats-Scheduler: another",
        "Nats-Expected-Last-Sequence: 5",
        "Nats-Msg-Id: id",
        "Nats-TTL : 5",
        "Nats-Rollup: sub",
        "Nats-TTL-Own: kept",
        "Two: 2",
    )
    plain = Schedule(At(0), b"t", b"", b"", b"")
    assert produced(plain, b"s.a", told, None) == block(
        "One: 1", "Nats-TTL-Own: kept", "Two: 2", "Nats-Scheduler: s.a", "Nats-Schedule-Next: purge"
    )
    full = Schedule(At(0), b"t", b"", b"5m", b"sub")
    assert produced(full, b"s.a", b"", Next(0, b"then")) == block(
        "Nats-Scheduler: s.a", "Nats-Schedule-Next: then", "Nats-TTL: 5m", "Nats-Rollup: sub"
    )


async def test_every_way_of_ending_a_schedule_is_checked(world: World) -> None:
    made = await stream_all(world)
    await made.create("s", subjects=["s.>"], allow_msg_schedules=True)
    await made.publish("s.plain", b"no schedule")
    for fields in (
        ["Nats-Schedule-Next: 2100-01-01T00:00:00Z", "Nats-Scheduler: s.a"],
        ["Nats-Schedule-Next: purge"],
        ["Nats-Schedule-Next: purge", "Nats-Scheduler: s.b"],
        ["Nats-Schedule-Next: purge", "Nats-Scheduler: s.*"],
        ["Nats-Schedule-Next: purge", "Nats-Scheduler: s.plain"],
        ["Nats-Scheduler: s.a"],
    ):
        answer = await made.publish("s.b", b"x", block(*fields))
        assert isinstance(answer, dict)
        assert answer["error"]["err_code"] == errors.SCHEDULER_INVALID.err_code
    gone = block("Nats-Schedule-Next: purge", "Nats-Scheduler: s.gone")
    assert await made.publish("s.b", b"x", gone) == {"stream": "s", "seq": 2}
    made.close()
