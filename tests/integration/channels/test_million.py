"""A million queued jobs: listed, claimed, counted, and restored after a kill."""

import signal
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import SyncClient
from tests.integration.channels.api import Api, Channel, eventually, serving
from tests.integration.channels.test_restart import known

MILLION = 1_000_000


def counts(api: Api) -> dict[int, int]:
    return {row["status"]: row["count"] for row in api.get("/job-status").json["big"]["one"]}


@pytest.mark.feature("C07", "C15")
@pytest.mark.timeout(600)
def test_a_million_queued_jobs(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        channel = Channel(Api(broker.host, broker.port), "big")
        consumer = channel.consumer("one")
        with SyncClient(f"http://{broker.host}:{broker.port}") as client:
            for start in range(0, MILLION, 100_000):
                payloads = pa.array([b"%d" % n for n in range(start, start + 100_000)], pa.binary())
                client.push("big", pa.table({"payload": payloads}))
        channel.sent("urgent", X_Broker_Message_Priority="1")
        eventually(lambda: counts(channel.api)[1001] == MILLION + 1)
        assert consumer.payloads() == ["urgent", *map(str, range(99))]
        claimed = consumer.request("POST", "/claim?limit=100&timeout=3600").json["Result"]
        assert len(claimed) == 100
        moved = [consumer.move(job["ID"], "DELIVERED").status for job in claimed[:50]]
        assert set(moved) == {202}
        broker.signal(signal.SIGKILL)
        broker.wait()
    with serving(tmp_path) as broker:
        consumer = known(Api(broker.host, broker.port), "big", "one")
        assert counts(consumer.channel.api) == {1001: MILLION - 99, 1002: 50, 1003: 50}
        page = consumer.request("GET", "/queued-jobs?limit=100&cursor=").json
        payloads = [int(job["Message"]["Payload"]) for job in page["Result"]]
        assert payloads[0] == 99
        assert all(b - a == 1 for a, b in pairwise(payloads))
