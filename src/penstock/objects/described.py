"""Stores as others are told of them, without secrets, and opened again from that elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.config.settings import S3, Azblob, Cloud, Gcs
from penstock.formats.plan_api import StoreReply
from penstock.model.errors import ConfigError
from penstock.objects.factory import DIRECTORY, open_store
from penstock.objects.interface import ObjectStore

CREDENTIALS: Final = (
    "access_key",
    "secret_key",
    "session_token",
    "account_key",
    "credential_file",
    "endpoint",
)
"""What whoever opens a described store may give; without it, what the machine has is used."""


def describe(cloud: Cloud, data: Path) -> StoreReply:
    """Where the store that `storage.cloud` describes is."""
    if cloud.backend in ("fs", "local"):
        return StoreReply(
            "fs", str((Path(cloud.root) if cloud.root else data / DIRECTORY).absolute())
        )
    if cloud.backend == "s3":
        s3 = cloud.s3
        return StoreReply("s3", cloud.root, s3.endpoint, s3.region, s3.addressing)
    if cloud.backend == "gcs":
        gcs, root = cloud.gcs, _url("gs", cloud.gcs.bucket, cloud.root)
        access = gcs.access if gcs.access == "anonymous" else ""
        return StoreReply("gcs", root, gcs.endpoint, access=access)
    if cloud.backend == "azblob":
        azblob = cloud.azblob
        root = _url("az", azblob.container, cloud.root)
        return StoreReply("azblob", root, azblob.endpoint, account=azblob.account)
    return StoreReply(cloud.backend)


def open_described(told: StoreReply, credentials: Mapping[str, str]) -> ObjectStore:
    """The store, with credentials of one's own; call it where an event loop runs.

    Raises ConfigError.
    """
    return open_store(configured(told, credentials), Path())


def configured(told: StoreReply, credentials: Mapping[str, str]) -> Cloud:
    """The store as a broker would configure it; raises ConfigError."""
    if unknown := credentials.keys() - set(CREDENTIALS):
        known = ", ".join(CREDENTIALS)
        raise ConfigError(f"no such credential: {', '.join(sorted(unknown))}; known: {known}")
    if told.backend == "memory":
        raise ConfigError("a bucket in the memory of the broker can be read through it only")
    get, endpoint = credentials.get, credentials.get("endpoint") or told.endpoint
    key_file = get("credential_file", "")
    return Cloud(
        backend=told.backend,
        root=told.root,
        s3=S3(
            region=told.region,
            endpoint=endpoint,
            access_key=get("access_key", ""),
            secret_key=get("secret_key", ""),
            session_token=get("session_token", ""),
            addressing=told.addressing or "path",
        ),
        gcs=Gcs(
            credential_file=key_file,
            endpoint=endpoint,
            access="signed" if key_file else told.access or "signed",
        ),
        azblob=Azblob(account=told.account, key=get("account_key", ""), endpoint=endpoint),
    )


def _url(scheme: str, bucket: str, root: str) -> str:
    return root if "://" in root else f"{scheme}://{bucket}/{root}".rstrip("/")
