from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.formats.plan_api import StoreReply
from penstock.objects import ObjectMissing
from penstock.objects.stores import describe
from penstock.spark.buckets import SparkBucket
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

TABLE = pa.table({"n": list(range(10_000)), "text": [f"row {n}" for n in range(10_000)]})


def parquet() -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink, row_group_size=3000)
    return sink.getvalue()


@pytest.fixture(params=["fs", "rclone"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> SparkBucket:
    if request.param == "fs":
        return SparkBucket(StoreReply("fs", str(tmp_path)), {})
    server: S3Server = request.getfixturevalue("rclone")
    told = describe(server.cloud(), tmp_path)
    return SparkBucket(told, {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY})


def test_objects_are_written_listed_read_and_deleted(bucket: SparkBucket) -> None:
    data = parquet()
    assert bucket.put("a/b.parquet", data).size_bytes == data.size
    assert [info.key for info in bucket.list("a/")] == ["a/b.parquet"]
    assert bucket.get("a/b.parquet", 0, 4) == b"PAR1"
    with bucket.parquet("a/b.parquet", data.size) as file:
        assert file.read() == TABLE
        assert file.read_row_group(1, ["text"]).num_rows == 3000
    bucket.delete("a/b.parquet")
    with pytest.raises(ObjectMissing):
        bucket.parquet("a/b.parquet", data.size)
