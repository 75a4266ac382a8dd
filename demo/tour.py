"""The steps of the tour, in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from demo.broker import DemoBroker
from penstock import nats, spark

ROWS: Final = (
    '{"id": 1, "customer": "ada", "total": 17.5}',
    '{"id": 2, "customer": "grace", "total": 40.0}',
)
UPLOAD_SECONDS: Final = 30


def steps() -> list[tuple[str, Callable[[DemoBroker], None]]]:
    return [
        ("HTTP: a typed topic, two rows, and a fetch by offset", http),
        ("NATS: the same topic is a stream; a third row, pulled and acknowledged", nats_pull),
        ("Channels: a broadcast becomes a job that a consumer claims", channels),
        ("Tiers: the pushed rows are a Parquet object in the bucket", tiers),
        ("Spark: the topic is a table, cold objects and hot tail together", spark_table),
    ]


def http(broker: DemoBroker) -> None:
    fields = ("id:int64", "customer:string", "total:float64")
    broker.command("topic", "create", "orders", *fields)
    broker.command("push", "orders", *ROWS)
    broker.command("fetch", "--topic", "orders", "--offset", "0")


def nats_pull(broker: DemoBroker) -> None:
    asyncio.run(_pull(broker.addresses["nats"]))


async def _pull(url: str) -> None:
    async with await nats.connect(url) as client:
        stored = await client.publish("orders", b'{"id": 3, "customer": "linus", "total": 8.25}')
        print(f"published to subject orders: {stored}")
        subscription = await client.pull_subscribe("orders", "billing")
        for message in await subscription.fetch(10, seconds=5):
            print(f"pulled sequence {message.delivery.sequence}: {message.payload.decode()}")
            await message.ack_confirmed()


def channels(broker: DemoBroker) -> None:
    broker.command("producer", "put", "shop")
    broker.command("channel", "put", "mails")
    callback = ("--callback", "http://127.0.0.1:9/unused")
    broker.command("consumer", "put", "mails", "worker", "--type", "pull", *callback)
    broker.command("channel", "broadcast", "mails", '{"to": "ada"}', "--producer", "shop")
    broker.command("job", "claim", "mails", "worker")


def tiers(broker: DemoBroker) -> None:
    objects = broker.data / "objects"
    for _ in range(UPLOAD_SECONDS * 10):
        if paths := sorted(objects.rglob("orders/*.parquet")):
            break
        time.sleep(0.1)
    else:
        raise SystemExit("nothing was uploaded in time")
    for path in paths:
        print(path.relative_to(broker.data), path.stat().st_size, "bytes")
    _print_first_row(paths[0])


def _print_first_row(path: Path) -> None:
    """Print the first row; any Parquet reader can read the object."""
    import pyarrow.parquet as pq

    print(pq.read_table(path).to_pylist()[0])


def spark_table(broker: DemoBroker) -> None:
    session = spark.session(broker=broker.addresses["http"])
    try:
        table = spark.topic(session, "orders")
        table.groupBy("customer").sum("total").orderBy("customer").show()
    finally:
        session.stop()
