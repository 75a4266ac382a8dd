"""A Spark session and a broker process, shared by all tests of this directory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.spark.sessions import session
from tests.integration.process import FREE_PORT, Broker
from tests.spark.topics import numbered, uploaded

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options that halve the CPU time of a short run."""

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.log.level": "ERROR",
}
MILLION = 1_000_000
HOT = 5000
SUBJECTS = 1000
PUSHED_AT_ONCE = 500_000
UPLOAD_EACH_SECOND = ("--set", "storage.uploader.interval_seconds=1")
NEVER_AT_REST = ("--set", "storage.uploader.rotation.max_object_seconds=86400")
"""Settings that keep the broker from merging a few neighbouring objects."""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("broker")
    settings = (*UPLOAD_EACH_SECOND, *NEVER_AT_REST)
    with Broker("--data", str(data), *FREE_PORT, *settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def url(broker: Broker) -> str:
    return f"http://{broker.host}:{broker.port}"


@pytest.fixture(scope="session")
def spark(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    made = session(url, "local[2]", **SMALL, **{"spark.sql.warehouse.dir": warehouse})
    yield made
    made.stop()


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[penstock.SyncClient]:
    with penstock.SyncClient(url) as client:
        yield client


@pytest.fixture
def name() -> str:
    """The name of a topic that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def million(client: penstock.SyncClient) -> str:
    """A topic of a million messages in several objects and some hot messages."""
    client.create_topic("million")
    for first in range(0, MILLION, PUSHED_AT_ONCE):
        client.push("million", numbered(first, PUSHED_AT_ONCE, SUBJECTS))
        uploaded(client, "million")
    client.push("million", numbered(MILLION, HOT, SUBJECTS))
    return "million"
