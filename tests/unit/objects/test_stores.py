from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from penstock.config import AzblobSection, CloudSection, GcsSection, S3Section
from penstock.formats.plan_api import StoreReply
from penstock.model.errors import ConfigError, ResourceUnknown
from penstock.objects import MemoryStore, Stores, open_described, open_store
from penstock.objects.fs import FileStore
from penstock.objects.remote import RemoteStore
from penstock.objects.stores import configured, describe
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server


@pytest.mark.feature("F35")
async def test_every_configuration_has_one_client_that_is_kept(tmp_path: Path) -> None:
    other = CloudSection(root=str(tmp_path / "other"))
    stores = Stores(
        CloudSection(), {"one": other, "two": CloudSection(root=str(tmp_path / "other"))}, tmp_path
    )
    assert stores.get("") is stores.get("")
    assert stores.get("one") is stores.get("two") is not stores.get("")
    await stores.get("").put("k", [b"own"])
    await stores.get("one").put("k", [b"other"])
    assert (tmp_path / "objects" / "k").read_bytes() == b"own"
    assert (tmp_path / "other" / "k").read_bytes() == b"other"
    await stores.close()


async def test_an_unknown_store_is_an_error(tmp_path: Path) -> None:
    stores = Stores(CloudSection(), {}, tmp_path)
    with pytest.raises(ResourceUnknown, match="object store archive does not exist"):
        stores.get("archive")
    await stores.close()


async def test_a_store_is_made_when_it_is_needed(tmp_path: Path) -> None:
    stores = Stores(CloudSection(), {"bad": CloudSection(backend="s3")}, tmp_path)
    stores.get("")
    with pytest.raises(ConfigError):
        stores.get("bad")
    await stores.close()


CANARIES = ("AKCANARY", "SKCANARY", "TKCANARY", "Q0FOQVJZ")
KEYS = S3Section(
    region="eu-west-1", access_key="AKCANARY", secret_key="SKCANARY", session_token="TKCANARY"
)
AZURE = AzblobSection(account="acc", key="Q0FOQVJZ", container="box")
DATA = Path("data")
CREDENTIAL_FILE = "storage.cloud.gcs.credential_file"


@pytest.mark.parametrize("backend", ["fs", "local"])
async def test_objects_are_files_in_the_data_directory_by_default(
    backend: str, tmp_path: Path
) -> None:
    store = open_store(CloudSection(backend=backend), tmp_path)
    assert isinstance(store, FileStore)
    await store.put("a/b", [b"x"])
    assert (tmp_path / "objects/a/b").read_bytes() == b"x"
    await store.close()
    store = open_store(CloudSection(backend=backend, root=str(tmp_path / "there")), tmp_path)
    await store.put("a/b", [b"x"])
    assert (tmp_path / "there/a/b").read_bytes() == b"x"
    await store.close()


async def test_objects_can_be_in_memory() -> None:
    assert isinstance(open_store(CloudSection(backend="memory"), DATA), MemoryStore)


@pytest.mark.parametrize(
    ("cloud", "shown"),
    [
        (CloudSection("s3", "s3://b/p/q", s3=KEYS), 'AsyncOperator("s3", root="/p/q/", name="b")'),
        (
            CloudSection("s3", "s3://b", s3=S3Section(region="x")),
            'AsyncOperator("s3", root="/", name="b")',
        ),
        (
            CloudSection("s3", "s3://b/", s3=S3Section(endpoint="http://h:1")),
            'AsyncOperator("s3", root="/", name="b")',
        ),
        (CloudSection("gcs", "gs://b/p/"), 'AsyncOperator("gcs", root="/p/", name="b")'),
        (
            CloudSection("gcs", "", gcs=GcsSection(bucket="b")),
            'AsyncOperator("gcs", root="/", name="b")',
        ),
        (
            CloudSection("gcs", "p/q", gcs=GcsSection(bucket="b")),
            'AsyncOperator("gcs", root="/p/q/", name="b")',
        ),
        (
            CloudSection("gcs", "gcs://b/p", gcs=GcsSection("b")),
            'AsyncOperator("gcs", root="/p/", name="b")',
        ),
        (CloudSection("azblob", "", azblob=AZURE), 'AsyncOperator("azblob", root="/", name="box")'),
        (
            CloudSection("azblob", "azblob://box/p", azblob=AZURE),
            'AsyncOperator("azblob", root="/p/", name="box")',
        ),
        (
            CloudSection("azblob", "az://box", azblob=dataclasses.replace(AZURE, container="")),
            'AsyncOperator("azblob", root="/", name="box")',
        ),
    ],
)
async def test_bucket_and_prefix_are_read_from_the_root(cloud: CloudSection, shown: str) -> None:
    store = open_store(cloud, DATA)
    assert isinstance(store, RemoteStore)
    assert store.backend == cloud.backend
    assert repr(store) == f"RemoteStore({shown})"
    await store.close()


@pytest.mark.feature("T32")
@pytest.mark.parametrize(
    ("cloud", "line"),
    [
        (CloudSection("fs", "s3://b"), "storage.cloud.root must be a path with backend fs"),
        (
            CloudSection("local", "file:///x"),
            "storage.cloud.root must be a path with backend local",
        ),
        (
            CloudSection("s3", "/a/path", s3=KEYS),
            "storage.cloud.root must look like s3://BUCKET/PREFIX with backend s3",
        ),
        (
            CloudSection("s3", "gs://b", s3=KEYS),
            "storage.cloud.root must look like s3://BUCKET/PREFIX with backend s3",
        ),
        (CloudSection("s3", "", s3=KEYS), "backend s3 needs a bucket: storage.cloud.root is empty"),
        (
            CloudSection("s3", "s3:///p", s3=KEYS),
            "backend s3 needs a bucket: storage.cloud.root is empty",
        ),
        (
            CloudSection("gcs", "gs://b", gcs=GcsSection(bucket="c")),
            "storage.cloud names two buckets: b in root, and c",
        ),
        (
            CloudSection("s3", "s3://b/a/../c", s3=KEYS),
            "storage.cloud.root has a bad prefix: '..' is no name between two slashes",
        ),
        (
            CloudSection("s3", "s3://b/" + "p" * 128, s3=KEYS),
            "storage.cloud.root has a prefix over 127 bytes",
        ),
        (CloudSection("s3", "s3://b"), "backend s3 needs storage.cloud.s3.region, or an endpoint"),
        (
            CloudSection("s3", "s3://b", s3=S3Section(region="r", access_key="AKCANARY")),
            "storage.cloud.s3.access_key and secret_key go together",
        ),
        (
            CloudSection("s3", "s3://b", s3=S3Section(region="r", session_token="TKCANARY")),
            "storage.cloud.s3.session_token needs access_key and secret_key",
        ),
        (
            CloudSection("s3", "s3://b", s3=dataclasses.replace(KEYS, sse_kms_key_id="k")),
            "storage.cloud.s3.sse_kms_key_id needs server_side_encryption aws:kms",
        ),
        (
            CloudSection("s3", "s3://b", s3=dataclasses.replace(KEYS, endpoint="host:9000")),
            "storage.cloud.s3.endpoint must look like https://HOST[:PORT]",
        ),
        (
            CloudSection(
                "s3", "s3://b", s3=dataclasses.replace(KEYS, endpoint="http://AK:SKCANARY@h")
            ),
            "storage.cloud.s3.endpoint must not hold a user or password",
        ),
        (
            CloudSection("gcs", "gs://b", gcs=GcsSection(credential_file="nowhere.json")),
            f"{CREDENTIAL_FILE} nowhere.json: No such file or directory",
        ),
        (
            CloudSection("gcs", "gs://b", gcs=GcsSection(credential_file=__file__)),
            f"{CREDENTIAL_FILE} {__file__} is no key file: JSON with a type is expected",
        ),
        (
            CloudSection(
                "gcs", "gs://b", gcs=GcsSection(credential_file=__file__, access="anonymous")
            ),
            f"{CREDENTIAL_FILE} is of no use with access anonymous",
        ),
        (
            CloudSection("azblob", "az://c"),
            "backend azblob needs storage.cloud.azblob.account or .endpoint",
        ),
        (
            CloudSection(
                "azblob", "az://c", azblob=dataclasses.replace(AZURE, container="", key="!CANARY")
            ),
            None,
        ),
    ],
)
async def test_inconsistent_settings_are_refused_in_one_line_without_secrets(
    cloud: CloudSection, line: str | None
) -> None:
    with pytest.raises(ConfigError) as error:
        open_store(cloud, DATA)
    assert line is None or str(error.value) == line
    assert "\n" not in str(error.value)
    assert "CANARY" not in str(error.value)


@pytest.mark.feature("T32")
@pytest.mark.parametrize(
    "cloud", [CloudSection("s3", "s3://b", s3=KEYS), CloudSection("azblob", "", azblob=AZURE)]
)
async def test_the_repr_of_a_store_has_no_secrets(cloud: CloudSection) -> None:
    store = open_store(cloud, DATA)
    shown = repr(store) + repr(cloud) + "".join(repr(value) for value in vars(store).values())
    assert not [secret for secret in CANARIES if secret in shown]
    await store.close()


@pytest.mark.parametrize(
    ("cloud", "told"),
    [
        (CloudSection(), StoreReply("fs", "/d/objects")),
        (CloudSection(backend="local", root="/x"), StoreReply("fs", "/x")),
        (CloudSection(backend="memory"), StoreReply("memory")),
        (
            CloudSection(
                backend="s3",
                root="s3://b/p",
                s3=S3Section(region="r", endpoint="http://e", access_key="k", secret_key="s"),
            ),
            StoreReply("s3", "s3://b/p", "http://e", "r", "path"),
        ),
        (
            CloudSection(
                backend="gcs", root="p", gcs=GcsSection(bucket="b", credential_file="/key")
            ),
            StoreReply("gcs", "gs://b/p"),
        ),
        (
            CloudSection(
                backend="gcs",
                root="gs://b",
                gcs=GcsSection(endpoint="http://e", access="anonymous"),
            ),
            StoreReply("gcs", "gs://b", "http://e", access="anonymous"),
        ),
        (
            CloudSection(
                backend="azblob", azblob=AzblobSection(account="a", key="k", container="c")
            ),
            StoreReply("azblob", "az://c", account="a"),
        ),
    ],
)
def test_a_description_has_no_secrets(cloud: CloudSection, told: StoreReply) -> None:
    assert describe(cloud, Path("/d")) == told


async def test_a_described_directory_is_opened_again(tmp_path: Path) -> None:
    store = open_described(describe(CloudSection(), tmp_path), {})
    assert isinstance(store, FileStore)
    await store.put("a", [b"x"])
    assert (tmp_path / "objects" / "a").read_bytes() == b"x"
    await store.close()


async def test_a_described_bucket_is_opened_with_other_credentials(rclone: S3Server) -> None:
    told = describe(rclone.cloud(), Path())
    store = open_described(told, {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY})
    await store.put("a", [b"x"])
    assert await store.get("a") == b"x"
    await store.close()


def test_an_anonymous_bucket_is_opened_so_but_with_a_key_file() -> None:
    told = StoreReply("gcs", "gs://b", "http://e", access="anonymous")
    assert configured(told, {}).gcs == GcsSection(endpoint="http://e", access="anonymous")
    key = configured(told, {"credential_file": "/key"}).gcs
    assert key == GcsSection(credential_file="/key", endpoint="http://e")
    assert configured(StoreReply("gcs", "gs://b"), {}).gcs.access == "signed"


def test_a_description_that_cannot_be_opened_is_refused() -> None:
    with pytest.raises(ConfigError, match="through it only"):
        open_described(StoreReply("memory"), {})
    with pytest.raises(ConfigError, match="no such credential: accesskey"):
        open_described(StoreReply("fs", "/x"), {"accesskey": "k"})
