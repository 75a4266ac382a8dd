"""The whole storage: settings, and messages that survive restarts and lost disks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.assembly.storage import (
    Storage,
    in_memory,
    lease_terms,
    log_settings,
    shared_limits,
    tier_settings,
)
from penstock.config import Address
from penstock.log import LogMode, LogSettings, WhenFull
from penstock.metadata.ownership import LeaseTerms, find_owner
from penstock.model.errors import ConfigError
from penstock.model.resources import Durability, TopicSpec
from penstock.model.run import Run
from penstock.tiers.settings import Pressure
from penstock.topics import Topics
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
    assert lease_terms(config) == LeaseTerms()


def test_a_lease_and_its_margin_come_from_the_configuration(tmp_path: Path) -> None:
    lease = ("storage.etcd.lease_seconds=30", "storage.etcd.lease_margin_ms=2500")
    assert lease_terms(config_of(tmp_path, *lease)) == LeaseTerms(30, 2.5)
    with pytest.raises(ConfigError, match="lease_seconds and lease_margin_ms: a lease of 4 s"):
        lease_terms(config_of(tmp_path, "storage.etcd.lease_seconds=4"))


@pytest.mark.feature("T27")
async def test_in_memory_nothing_is_written_to_the_data_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with opened(data, "storage.mode=memory", f"storage.wal.dir={data}/wal") as storage:
        host = storage.topic_host()
        assert host.in_memory
        assert host.store.backend == "memory"
        await host.metadata.put("/key", b"value")
        log = await storage.logs.create(TOPIC, Durability.MEMORY)
        await log.append(Run(b"orders.eu", [b"0", b"1"]))
        assert list(data.iterdir()) == []
        aside = Path(storage._config.data)
        assert aside.is_dir()
    assert not aside.exists()


def test_mode_memory_with_etcd_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, "storage.mode=memory", "storage.etcd.endpoints=a:1")
    with pytest.raises(ConfigError, match="memory has no use for"):
        in_memory(config, tmp_path)


async def test_stored_messages_survive_every_restart(tmp_path: Path) -> None:
    for life in range(3):
        async with opened(tmp_path) as storage:
            await fill(storage, life * 100, 100)
            assert await payloads(storage) == [b"%d" % n for n in range((life + 1) * 100)]
            assert storage.ready() == (True, {"logs": 1, "troubled": {}})


@pytest.mark.feature("T26")
async def test_after_a_lost_wal_new_offsets_are_above_all_used_ones(tmp_path: Path) -> None:
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
        log = await storage.logs.load(TOPIC)
        assert log is not None
        assert log.mode is LogMode.OPEN


@pytest.mark.feature("F27")
async def test_topics_survive_a_restart_until_they_are_deleted(
    tmp_path: Path,
) -> None:
    spec = TopicSpec(TOPIC)
    async with opened(tmp_path) as storage:
        topics = Topics(storage.topic_host())
        await topics.open()
        created = await topics.create_topic(spec)
        await topics.get(TOPIC).log.append(Run(b"orders.eu", [b"a", b"b"]))
    async with opened(tmp_path) as storage:
        topics = Topics(storage.topic_host())
        await topics.open()
        assert topics.get(TOPIC).topic == created
        assert await payloads(storage) == [b"a", b"b"]
        assert list(tmp_path.rglob("*.parquet"))
        await topics.delete_topic(TOPIC)
        assert not list(tmp_path.rglob("*orders*/*"))
        await topics.create_topic(spec)
        assert await payloads(storage) == []


@pytest.mark.feature("T26")
async def test_the_owner_of_a_topic_is_found_at_the_address_of_its_server(tmp_path: Path) -> None:
    storage = Storage(config_of(tmp_path), Address("127.0.0.1", 4711))
    try:
        await storage.open()
        host = storage.topic_host()
        await host.tiers.own(TOPIC)
        owner = await find_owner(host.metadata, host.keys, TOPIC)
        assert owner is not None
        assert owner.address == "127.0.0.1:4711"
    finally:
        await storage.close()
