"""Two brokers take a topic from each other, each time while its owner is stopped past its lease.

What the stopped owner had acknowledged is on its disk only. Once it runs again, every message that
was ever acknowledged is read at the offset it was acknowledged with, from whichever broker owns the
topic by then.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.process import FREE_PORT, Answer, Broker
from tests.servers.etcd import EtcdServer

ROUNDS = 6
RUN = 20
WAIT_SECONDS = 60.0
TOPIC = "/v1/tenants/default/namespaces/default/topics"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.close()


def settings(directory: Path, name: str, etcd: EtcdServer) -> list[str]:
    values = {
        "storage.mode": "wal_cloud",
        "storage.cloud.backend": "fs",
        "storage.cloud.root": str(directory / "bucket"),
        "storage.etcd.endpoints": etcd.endpoint,
        "storage.etcd.lease_seconds": "3",
        "storage.etcd.lease_margin_ms": "1000",
        # Nothing is uploaded but what returns.
        "storage.uploader.interval_seconds": "3600",
    }
    sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return ["--data", str(directory / name), *FREE_PORT, *sets]


class Acked:
    """What was acknowledged so far: payload by offset."""

    def __init__(self) -> None:
        self.payloads: dict[int, str] = {}
        self._count = 0

    def push(self, broker: Broker, count: int) -> None:
        """Push messages one by one; the broker owns the topic, or takes it over first."""
        for _ in range(count):
            self._count += 1
            self._push(broker, f"message {self._count}")

    def in_order(self) -> list[str]:
        return [self.payloads[offset] for offset in sorted(self.payloads)]

    def _push(self, broker: Broker, payload: str) -> None:
        batch = {"topic": "events", "data": [{"payload": payload}]}
        body = {"namespace": "default/default", "batches": [batch]}
        deadline = time.monotonic() + WAIT_SECONDS
        while (result := self._result(broker.post("/v1/push", body)))["_tag"] != "success":
            assert time.monotonic() < deadline, result
            time.sleep(0.05)
        offset = result["start_offset"]
        assert offset not in self.payloads, "no offset is given twice"
        self.payloads[offset] = payload

    def _result(self, answer: Answer) -> dict[str, Any]:
        if answer.status != 200:
            return {"_tag": "error", "message": answer.body}
        [result] = answer.body["batches"]
        return dict(result)


def read(broker: Broker) -> list[str]:
    """Payloads of the topic in the order of their offsets."""
    found: list[str] = []
    offset = 0
    while True:
        request = {"topic": "events", "offset": offset}
        body = {"namespace": "default/default", "timeout_ms": 500, "topics": [request]}
        [result] = broker.post("/v1/fetch", body).body["topics"]
        if result["_tag"] != "success" or not result["messages"]:
            return found
        found += [message["payload"] for message in result["messages"]]
        offset = result["end_offset"] + 1


@pytest.mark.timeout(600)
@pytest.mark.feature("T23", "T26")
def test_what_a_stopped_owner_acknowledged_is_read_again_once_it_runs(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    acked = Acked()
    with (
        Broker(*settings(tmp_path, "a", etcd)) as owner,
        Broker(*settings(tmp_path, "b", etcd)) as heir,
    ):
        assert owner.post(TOPIC, {"topic": "events"}).status == 201
        for _ in range(ROUNDS):
            acked.push(owner, RUN)
            owner.signal(signal.SIGSTOP)
            acked.push(heir, RUN)
            owner.signal(signal.SIGCONT)
            deadline = time.monotonic() + WAIT_SECONDS
            while (found := read(heir)) != acked.in_order():
                assert time.monotonic() < deadline, found
            owner, heir = heir, owner
        asides = [*tmp_path.glob("?/wal/**/*.overtaken-*")]
    assert len(asides) <= 1, "a WAL is removed once its messages are returned"
