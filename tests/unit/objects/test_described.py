from pathlib import Path

import pytest

from penstock.config.settings import S3, Azblob, Cloud, Gcs
from penstock.formats.plan_api import StoreReply
from penstock.model.errors import ConfigError
from penstock.objects.described import configured, describe, open_described
from penstock.objects.fs import FileStore
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server


@pytest.mark.parametrize(
    ("cloud", "told"),
    [
        (Cloud(), StoreReply("fs", "/d/objects")),
        (Cloud(backend="local", root="/x"), StoreReply("fs", "/x")),
        (Cloud(backend="memory"), StoreReply("memory")),
        (
            Cloud(
                backend="s3",
                root="s3://b/p",
                s3=S3(region="r", endpoint="http://e", access_key="k", secret_key="s"),
            ),
            StoreReply("s3", "s3://b/p", "http://e", "r", "path"),
        ),
        (
            Cloud(backend="gcs", root="p", gcs=Gcs(bucket="b", credential_file="/key")),
            StoreReply("gcs", "gs://b/p"),
        ),
        (
            Cloud(backend="gcs", root="gs://b", gcs=Gcs(endpoint="http://e", access="anonymous")),
            StoreReply("gcs", "gs://b", "http://e", access="anonymous"),
        ),
        (
            Cloud(backend="azblob", azblob=Azblob(account="a", key="k", container="c")),
            StoreReply("azblob", "az://c", account="a"),
        ),
    ],
)
def test_a_store_is_told_without_its_secrets(cloud: Cloud, told: StoreReply) -> None:
    assert describe(cloud, Path("/d")) == told


async def test_a_described_directory_is_opened_again(tmp_path: Path) -> None:
    store = open_described(describe(Cloud(), tmp_path), {})
    assert isinstance(store, FileStore)
    await store.put("a", [b"x"])
    assert (tmp_path / "objects" / "a").read_bytes() == b"x"
    await store.close()


async def test_a_described_bucket_is_opened_with_credentials_of_ones_own(rclone: S3Server) -> None:
    told = describe(rclone.cloud(), Path())
    store = open_described(told, {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY})
    await store.put("a", [b"x"])
    assert await store.get("a") == b"x"
    await store.close()


def test_an_anonymous_bucket_is_opened_so_but_with_a_key_file() -> None:
    told = StoreReply("gcs", "gs://b", "http://e", access="anonymous")
    assert configured(told, {}).gcs == Gcs(endpoint="http://e", access="anonymous")
    key = configured(told, {"credential_file": "/key"}).gcs
    assert key == Gcs(credential_file="/key", endpoint="http://e")
    assert configured(StoreReply("gcs", "gs://b"), {}).gcs.access == "signed"


def test_what_cannot_be_opened_is_told() -> None:
    with pytest.raises(ConfigError, match="through it only"):
        open_described(StoreReply("memory"), {})
    with pytest.raises(ConfigError, match="no such credential: accesskey"):
        open_described(StoreReply("fs", "/x"), {"accesskey": "k"})
