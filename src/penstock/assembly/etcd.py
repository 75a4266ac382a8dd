"""Checks the settings of etcd. Imported only if etcd is used, as its client is large."""

from __future__ import annotations

from pathlib import Path

from penstock.config import Config
from penstock.metadata.etcd import EtcdSettings
from penstock.model.errors import ConfigError


def etcd_settings(config: Config) -> EtcdSettings:
    """The settings of the etcd client from `storage.etcd`; raises ConfigError."""
    etcd = config.storage.etcd
    if bool(etcd.user) != bool(etcd.password):
        raise ConfigError("storage.etcd.user and password go together")
    if bool(etcd.cert_file) != bool(etcd.key_file):
        raise ConfigError("storage.etcd.cert_file and key_file go together")
    if any((etcd.ca_file, etcd.cert_file)) and not all(
        endpoint.startswith("https://") for endpoint in etcd.endpoints
    ):
        raise ConfigError("storage.etcd.ca_file and cert_file need endpoints with https://")
    return EtcdSettings(
        endpoints=etcd.endpoints,
        call_seconds=float(etcd.call_timeout_seconds),
        user=etcd.user,
        password=etcd.password,
        ca_pem=_read("ca_file", etcd.ca_file),
        certificate_pem=_read("cert_file", etcd.cert_file),
        private_key_pem=_read("key_file", etcd.key_file),
    )


def _read(name: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"storage.etcd.{name} {path} cannot be read: {reason}") from None
