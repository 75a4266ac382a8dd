"""What the broker writes to its log: events with topic, offsets and object ids as fields."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.model.errors import DataDamaged
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from tests.unit.assembly.stored import TOPIC, fill, opened

P = PartitionId(0)


@pytest.mark.feature("T29")
async def test_events_carry_topic_offsets_and_object_ids_as_fields(tmp_path: Path) -> None:
    with capture_logs() as events:
        async with opened(tmp_path, "storage.wal.cache.max_bytes=0") as storage:
            for start in range(0, 100, 10):
                await fill(storage, start, 10)
            assert storage.tiers is not None
            tier = storage.tiers[TOPIC]
            tier.log.rotate()
            await tier.log.append(Run(b"s", [b"x"]))
            await storage.tiers.upkeep(TOPIC)
            merged = max(tier.manifest.index, key=lambda entry: entry.rows)
    found = {event["event"]: event for event in events}
    assert found["wal_rotated"]["topic"] == str(TOPIC)
    assert found["wal_rotated"]["file"].startswith("wal-0000000001-")
    assert found["objects_merged"]["object"] == merged.object_id
    assert found["objects_merged"]["topic"] == str(TOPIC)


@pytest.mark.feature("T29")
async def test_damage_is_told_by_topic_partition_and_offsets(tmp_path: Path) -> None:
    with capture_logs() as events:
        async with opened(tmp_path, "storage.wal.cache.max_bytes=0") as storage:
            log = await storage.logs.create(TOPIC)
            await log.append(Run(b"s", [b"0", b"1", b"2"]))
            (path,) = log.directory.glob("*.log")
            data = bytearray(path.read_bytes())
            data[data.rindex(b"s012")] ^= 1
            path.write_bytes(data)
            with pytest.raises(DataDamaged):
                await log.read(P, Offset(0))
    (damage,) = [event for event in events if event["event"] == "data_damaged"]
    assert {key: damage[key] for key in ("topic", "partition", "first", "next", "log_level")} == {
        "topic": str(TOPIC),
        "partition": 0,
        "first": 0,
        "next": 3,
        "log_level": "error",
    }
