"""Storage as a whole: from the configuration to messages that survive restarts and lost disks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.assembly.storage import log_settings, shared_limits, tier_settings
from penstock.log.reopen import Mode
from penstock.log.settings import LogSettings, WhenFull
from penstock.model.run import Run
from penstock.tiers.settings import Pressure
from tests.unit.assembly.stored import PARTITION, TOPIC, config_of, fill, opened, payloads


def test_settings_come_from_the_configuration(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        "storage.wal.max_file_bytes=8192",
        "storage.wal.fsync_interval_ms=5",
        "storage.wal.when_full=refuse",
        "storage.wal.cache.max_seconds=7",
        "storage.uploader.when_behind=slow",
        "storage.wal.retention.min_minutes=2",
    )
    assert log_settings(config) == LogSettings(
        file_bytes_max=8192, sync_delay_seconds=0.005, when_full=WhenFull.REFUSE
    )
    assert shared_limits(config).cache_seconds_max == 7
    assert tier_settings(config).pressure is Pressure.SLOW
    assert tier_settings(config).wal_seconds_min == 120


async def test_what_was_stored_is_there_after_every_restart(tmp_path: Path) -> None:
    for life in range(3):
        async with opened(tmp_path) as storage:
            await fill(storage, life * 100, 100)
            assert await payloads(storage) == [b"%d" % n for n in range((life + 1) * 100)]
            assert storage.ready() == (True, {"logs": 1, "troubled": {}})


@pytest.mark.feature("T26")
async def test_a_lost_wal_goes_on_above_every_offset_given_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, 0, 100)
        assert storage.tiers is not None
        await storage.tiers[TOPIC].log.append(Run(b"orders.eu", [b"not uploaded"]))
        reserved = storage.tiers[TOPIC].manifest.head.reserved
        await storage.tiers[TOPIC].log.close()
    shutil.rmtree(tmp_path / "wal")
    async with opened(tmp_path) as storage:
        assert storage.tiers is not None
        tier = await storage.tiers.add(TOPIC)
        assert tier.log.next_offset(PARTITION) == reserved
        assert (await payloads(storage))[:100] == [b"%d" % n for n in range(100)]
        assert (await tier.log.append(Run(b"orders.eu", [b"new"]))).first == reserved


async def test_a_topic_that_another_broker_owns_is_refused_and_the_rest_serves(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, 0, 10)
    (tmp_path / "broker-id").write_text("f" * 32)
    async with opened(tmp_path) as storage:
        log = storage.logs.get(TOPIC)
        assert log is not None
        assert log.mode is Mode.OPEN
