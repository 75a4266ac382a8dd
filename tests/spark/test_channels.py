"""Broadcasts as rows of Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import penstock.spark
from penstock.client import SyncClient
from tests.integration.channels.api import Api, Channel
from tests.integration.process import Broker
from tests.spark.topics import uploaded


@pytest.mark.feature("C23", "X01")
def test_broadcast_messages_are_read_from_objects_and_from_the_hot_tail(
    spark: SparkSession, broker: Broker, client: SyncClient, name: str
) -> None:
    channel = Channel(Api(broker.host, broker.port), name)
    channel.sent(b"\x00\xff", Content_Type="text/plain")
    uploaded(client, name)
    channel.sent("hot", X_Broker_Message_ID="m-1")
    frame = penstock.spark.topic(spark, name)
    found = frame.select("offset", "subject", "headers", "payload").orderBy("offset").collect()
    assert [(row["offset"], row["subject"], bytes(row["payload"])) for row in found] == [
        (0, name, b"\x00\xff"),
        (1, f"{name}.m-1", b"hot"),
    ]
    assert b"Content-Type: text/plain\r\n" in bytes(found[0]["headers"])
