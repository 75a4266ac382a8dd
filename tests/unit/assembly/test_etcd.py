"""Settings of the etcd client from the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.assembly.etcd import etcd_settings
from penstock.assembly.storage import open_metadata
from penstock.metadata import MetadataRefused
from penstock.metadata.etcd import EtcdSettings
from penstock.model.errors import ConfigError
from tests.servers.certificates import make_certificates
from tests.servers.etcd import EtcdServer
from tests.unit.assembly.stored import config_of, opened

HTTPS = "storage.etcd.endpoints=https://one:2379,https://two:2379"
SECRET = "its-a-secret"


def test_the_client_gets_every_setting_of_etcd(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_bytes(name.encode())
    config = config_of(
        tmp_path,
        HTTPS,
        "storage.etcd.user=penstock",
        f"storage.etcd.password={SECRET}",
        f"storage.etcd.ca_file={tmp_path}/ca",
        f"storage.etcd.cert_file={tmp_path}/cert",
        f"storage.etcd.key_file={tmp_path}/key",
        "storage.etcd.call_timeout_seconds=7",
    )
    settings = etcd_settings(config)
    assert settings == EtcdSettings(
        ("https://one:2379", "https://two:2379"), 7.0, "penstock", SECRET, b"ca", b"cert", b"key"
    )
    assert SECRET not in repr(config)
    plain = etcd_settings(config_of(tmp_path, "storage.etcd.endpoints=one:2379"))
    assert plain == EtcdSettings(("one:2379",))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["user=me"], "user and password go together"),
        (["password=me"], "user and password go together"),
        (["cert_file=x"], "cert_file and key_file go together"),
        (["key_file=x"], "cert_file and key_file go together"),
        (["ca_file=x", "endpoints=https://a:1,http://b:1"], "need endpoints with https://"),
        (["ca_file=/not/there"], "storage.etcd.ca_file /not/there cannot be read: no such file"),
    ],
)
def test_inconsistent_settings_of_etcd_are_refused_by_name(
    tmp_path: Path, settings: list[str], complaint: str
) -> None:
    config = config_of(tmp_path, HTTPS, *(f"storage.etcd.{text}" for text in settings))
    with pytest.raises(ConfigError, match=complaint):
        etcd_settings(config)


@pytest.mark.feature("T27")
async def test_a_broker_logs_in_to_etcd_with_its_user(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    options = [
        f"--cert-file={certificates.certificate}",
        f"--key-file={certificates.private_key}",
    ]
    server = EtcdServer(tmp_path / "etcd", scheme="https", options=options)
    (tmp_path / "etcd").mkdir()
    server.start()
    try:
        trusting = f"--cacert={certificates.authority}"
        for command in ("user add root:root", "user grant-role root root", "auth enable"):
            server.control(trusting, *command.split())
        where = (
            f"storage.etcd.endpoints={server.endpoint}",
            f"storage.etcd.ca_file={certificates.authority}",
        )
        who = ("storage.etcd.user=root", "storage.etcd.password=root")
        lease = ("storage.etcd.lease_seconds=4", "storage.etcd.lease_margin_ms=1500")
        async with opened(tmp_path, *where, *who, *lease) as storage:
            assert storage.ready()[0]
            assert "TTL(4s)" in server.control(
                trusting, "--user=root:root", "lease", "timetolive", _lease(server, trusting)
            )
        stranger = await open_metadata(config_of(tmp_path, *where))
        with pytest.raises(MetadataRefused):
            await stranger.get("/penstock")
        await stranger.close()
    finally:
        server.close()


def _lease(server: EtcdServer, trusting: str) -> str:
    """The id of the only lease."""
    return server.control(trusting, "--user=root:root", "lease", "list").split()[-1]
