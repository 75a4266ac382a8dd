import dataclasses
from pathlib import Path

import pytest

from penstock.config.settings import S3, Azblob, Cloud, Gcs
from penstock.model.errors import ConfigError
from penstock.objects.factory import open_store
from penstock.objects.fs import FileStore
from penstock.objects.memory import MemoryStore
from penstock.objects.remote import RemoteStore

CANARIES = ("AKCANARY", "SKCANARY", "TKCANARY", "Q0FOQVJZ")
KEYS = S3(
    region="eu-west-1", access_key="AKCANARY", secret_key="SKCANARY", session_token="TKCANARY"
)
AZURE = Azblob(account="acc", key="Q0FOQVJZ", container="box")
DATA = Path("data")
CREDENTIAL_FILE = "storage.cloud.gcs.credential_file"


@pytest.mark.parametrize("backend", ["fs", "local"])
async def test_objects_are_files_in_the_data_directory_unless_told_otherwise(
    backend: str, tmp_path: Path
) -> None:
    store = open_store(Cloud(backend=backend), tmp_path)
    assert isinstance(store, FileStore)
    await store.put("a/b", [b"x"])
    assert (tmp_path / "objects/a/b").read_bytes() == b"x"
    await store.close()
    store = open_store(Cloud(backend=backend, root=str(tmp_path / "there")), tmp_path)
    await store.put("a/b", [b"x"])
    assert (tmp_path / "there/a/b").read_bytes() == b"x"
    await store.close()


async def test_objects_can_be_in_memory() -> None:
    assert isinstance(open_store(Cloud(backend="memory"), DATA), MemoryStore)


@pytest.mark.parametrize(
    ("cloud", "shown"),
    [
        (Cloud("s3", "s3://b/p/q", s3=KEYS), 'AsyncOperator("s3", root="/p/q/", name="b")'),
        (Cloud("s3", "s3://b", s3=S3(region="x")), 'AsyncOperator("s3", root="/", name="b")'),
        (
            Cloud("s3", "s3://b/", s3=S3(endpoint="http://h:1")),
            'AsyncOperator("s3", root="/", name="b")',
        ),
        (Cloud("gcs", "gs://b/p/"), 'AsyncOperator("gcs", root="/p/", name="b")'),
        (Cloud("gcs", "", gcs=Gcs(bucket="b")), 'AsyncOperator("gcs", root="/", name="b")'),
        (Cloud("gcs", "p/q", gcs=Gcs(bucket="b")), 'AsyncOperator("gcs", root="/p/q/", name="b")'),
        (Cloud("gcs", "gcs://b/p", gcs=Gcs("b")), 'AsyncOperator("gcs", root="/p/", name="b")'),
        (Cloud("azblob", "", azblob=AZURE), 'AsyncOperator("azblob", root="/", name="box")'),
        (
            Cloud("azblob", "azblob://box/p", azblob=AZURE),
            'AsyncOperator("azblob", root="/p/", name="box")',
        ),
        (
            Cloud("azblob", "az://box", azblob=dataclasses.replace(AZURE, container="")),
            'AsyncOperator("azblob", root="/", name="box")',
        ),
    ],
)
async def test_bucket_and_prefix_are_read_from_the_root(cloud: Cloud, shown: str) -> None:
    store = open_store(cloud, DATA)
    assert isinstance(store, RemoteStore)
    assert store.backend == cloud.backend
    assert repr(store) == f"RemoteStore({shown})"
    await store.close()


@pytest.mark.feature("T32")
@pytest.mark.parametrize(
    ("cloud", "line"),
    [
        (Cloud("fs", "s3://b"), "storage.cloud.root must be a path with backend fs"),
        (Cloud("local", "file:///x"), "storage.cloud.root must be a path with backend local"),
        (
            Cloud("s3", "/a/path", s3=KEYS),
            "storage.cloud.root must look like s3://BUCKET/PREFIX with backend s3",
        ),
        (
            Cloud("s3", "gs://b", s3=KEYS),
            "storage.cloud.root must look like s3://BUCKET/PREFIX with backend s3",
        ),
        (Cloud("s3", "", s3=KEYS), "backend s3 needs a bucket: storage.cloud.root is empty"),
        (Cloud("s3", "s3:///p", s3=KEYS), "backend s3 needs a bucket: storage.cloud.root is empty"),
        (
            Cloud("gcs", "gs://b", gcs=Gcs(bucket="c")),
            "storage.cloud names two buckets: b in root, and c",
        ),
        (
            Cloud("s3", "s3://b/a/../c", s3=KEYS),
            "storage.cloud.root has a bad prefix: '..' is no name between two slashes",
        ),
        (
            Cloud("s3", "s3://b/" + "p" * 128, s3=KEYS),
            "storage.cloud.root has a prefix over 127 bytes",
        ),
        (Cloud("s3", "s3://b"), "backend s3 needs storage.cloud.s3.region, or an endpoint"),
        (
            Cloud("s3", "s3://b", s3=S3(region="r", access_key="AKCANARY")),
            "storage.cloud.s3.access_key and secret_key go together",
        ),
        (
            Cloud("s3", "s3://b", s3=S3(region="r", session_token="TKCANARY")),
            "storage.cloud.s3.session_token needs access_key and secret_key",
        ),
        (
            Cloud("s3", "s3://b", s3=dataclasses.replace(KEYS, sse_kms_key_id="k")),
            "storage.cloud.s3.sse_kms_key_id needs server_side_encryption aws:kms",
        ),
        (
            Cloud("s3", "s3://b", s3=dataclasses.replace(KEYS, endpoint="host:9000")),
            "storage.cloud.s3.endpoint must look like https://HOST[:PORT]",
        ),
        (
            Cloud("s3", "s3://b", s3=dataclasses.replace(KEYS, endpoint="http://AK:SKCANARY@h")),
            "storage.cloud.s3.endpoint must not hold a user or password",
        ),
        (
            Cloud("gcs", "gs://b", gcs=Gcs(credential_file="nowhere.json")),
            f"{CREDENTIAL_FILE} nowhere.json: No such file or directory",
        ),
        (
            Cloud("gcs", "gs://b", gcs=Gcs(credential_file=__file__)),
            f"{CREDENTIAL_FILE} {__file__} is no key file: JSON with a type is expected",
        ),
        (
            Cloud("gcs", "gs://b", gcs=Gcs(credential_file=__file__, access="anonymous")),
            f"{CREDENTIAL_FILE} is of no use with access anonymous",
        ),
        (
            Cloud("azblob", "az://c"),
            "backend azblob needs storage.cloud.azblob.account or .endpoint",
        ),
        (
            Cloud(
                "azblob", "az://c", azblob=dataclasses.replace(AZURE, container="", key="!CANARY")
            ),
            None,
        ),
    ],
)
async def test_what_does_not_fit_together_is_one_line_without_secrets(
    cloud: Cloud, line: str | None
) -> None:
    with pytest.raises(ConfigError) as error:
        open_store(cloud, DATA)
    assert line is None or str(error.value) == line
    assert "\n" not in str(error.value)
    assert "CANARY" not in str(error.value)


@pytest.mark.feature("T32")
@pytest.mark.parametrize(
    "cloud", [Cloud("s3", "s3://b", s3=KEYS), Cloud("azblob", "", azblob=AZURE)]
)
async def test_secrets_are_not_in_anything_a_store_shows_of_itself(cloud: Cloud) -> None:
    store = open_store(cloud, DATA)
    shown = repr(store) + repr(cloud) + "".join(repr(value) for value in vars(store).values())
    assert not [secret for secret in CANARIES if secret in shown]
    await store.close()
