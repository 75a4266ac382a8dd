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
        return StoreReply("gcs", _url("gs", cloud.gcs.bucket, cloud.root), cloud.gcs.endpoint)
    if cloud.backend == "azblob":
        azblob = cloud.azblob
        root = _url("az", azblob.container, cloud.root)
        return StoreReply("azblob", root, azblob.endpoint, account=azblob.account)
    return StoreReply(cloud.backend)


def open_described(told: StoreReply, credentials: Mapping[str, str]) -> ObjectStore:
    """The store, with credentials of one's own; call it where an event loop runs.

    Raises ConfigError.
    """
    if unknown := credentials.keys() - set(CREDENTIALS):
        known = ", ".join(CREDENTIALS)
        raise ConfigError(f"no such credential: {', '.join(sorted(unknown))}; known: {known}")
    if told.backend == "memory":
        raise ConfigError("a bucket in the memory of the broker can be read through it only")
    get, endpoint = credentials.get, credentials.get("endpoint") or told.endpoint
    cloud = Cloud(
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
        gcs=Gcs(endpoint=endpoint, credential_file=get("credential_file", "")),
        azblob=Azblob(account=told.account, key=get("account_key", ""), endpoint=endpoint),
    )
    return open_store(cloud, Path())


def _url(scheme: str, bucket: str, root: str) -> str:
    return root if "://" in root else f"{scheme}://{bucket}/{root}".rstrip("/")
