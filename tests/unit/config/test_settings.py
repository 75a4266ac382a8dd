import dataclasses
import ipaddress
from pathlib import Path

import pytest

from penstock.config import SETTINGS, Config, read_value
from penstock.config.storage_settings import StorageSection, WalSection

STORAGE_DESIGN = {
    "storage.wal.dir": "",
    "storage.wal.fsync_interval_ms": 0,
    "storage.wal.max_batch_bytes": 4 * 1024 * 1024,
    "storage.wal.max_file_bytes": 64 * 1024 * 1024,
    "storage.wal.max_file_seconds": 3600,
    "storage.wal.retention.min_minutes": 60,
    "storage.wal.retention.min_bytes": 107374182400,
    "storage.uploader.interval_seconds": 10,
    "storage.uploader.max_batch_bytes": 8388608,
    "storage.uploader.rotation.max_object_bytes": 134217728,
    "storage.uploader.rotation.max_object_seconds": 300,
    "storage.cloud.backend": "fs",
    "storage.cloud.root": "",
    "storage.cloud.s3.region": "",
    "storage.cloud.s3.endpoint": "",
    "storage.cloud.s3.access_key": "",
    "storage.cloud.s3.secret_key": "",
    "storage.cloud.gcs.bucket": "",
    "storage.cloud.gcs.credential_file": "",
    "storage.etcd.endpoints": (),
    "storage.etcd.namespace": "/penstock",
    "storage.progress.flush_interval_seconds": 5,
    "storage.progress.min_offset_delta": 1000,
    "storage.mode": "local_only",
}


@pytest.mark.feature("T27")
@pytest.mark.parametrize("key", STORAGE_DESIGN)
def test_every_key_of_the_storage_design_exists_with_its_default(key: str) -> None:
    assert read_value(Config(), key) == STORAGE_DESIGN[key]
    assert SETTINGS[key].default == STORAGE_DESIGN[key]


@pytest.mark.parametrize("key", SETTINGS)
def test_every_default_is_within_its_own_rule(key: str) -> None:
    facts = SETTINGS[key]
    assert facts.parse(facts.show(facts.default)) == facts.default


@pytest.mark.parametrize("key", [key for key, facts in SETTINGS.items() if facts.kind is int])
def test_every_number_has_a_range_of_more_than_one_value(key: str) -> None:
    assert SETTINGS[key].low < SETTINGS[key].high


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().data = "elsewhere"  # type: ignore[misc]


def test_the_wal_is_in_the_data_directory_by_default() -> None:
    assert Config(data="there").wal_dir == Path("there/wal")
    assert Config(storage=StorageSection(wal=WalSection(dir="elsewhere"))).wal_dir == Path(
        "elsewhere"
    )


@pytest.mark.feature("X02")
def test_the_default_server_is_on_loopback() -> None:
    config = Config()
    for [address] in (config.http.listen, config.grpc.listen, config.nats.listen):
        assert ipaddress.ip_address(address.host).is_loopback
