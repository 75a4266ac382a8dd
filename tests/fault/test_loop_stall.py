"""`penstock serve` whose event loop stands still for longer than the lease.

The lease is renewed by a thread, so the broker keeps its topics: with the same epoch, while another
broker that wants them is refused. Only a loop that stands still for longer than the limit loses
them.
"""

import json
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.metadata import MetadataKeys
from penstock.metadata.sqlite import FILE_NAME
from penstock.model.names import TopicName
from tests.fault.stalling_broker import STALL_SECONDS
from tests.integration.process import FREE_PORT, Answer, Broker
from tests.servers.etcd import EtcdServer

LEASE_SECONDS = 3
STALL = 2.5 * LEASE_SECONDS
"""Seconds."""
SETTINGS = {
    "storage.etcd.lease_seconds": str(LEASE_SECONDS),
    "storage.etcd.lease_margin_ms": "500",
    "log.format": "json",
}
STALLS = [
    pytest.param(signal.SIGUSR1, "sleep", id="a call that blocks"),
    pytest.param(signal.SIGUSR2, "spin", id="pure Python"),
]
ADMIN = "/v1/tenants/default/namespaces/default/topics"
OWNER = MetadataKeys().owner(TopicName("default", "default", "orders"))
ANSWERED = 200


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.close()


@contextmanager
def serving(
    data: Path, stall_seconds: float, settings: Mapping[str, str] | None = None
) -> Iterator[Broker]:
    chosen = {**SETTINGS, **(settings or {})}
    options = [part for item in chosen.items() for part in ("--set", "=".join(item))]
    command = (sys.executable, "-m", "tests.fault.stalling_broker", "serve")
    environ = {STALL_SECONDS: str(stall_seconds)}
    arguments = ("--data", str(data), *FREE_PORT, *options)
    with Broker(*arguments, command=command, environ=environ) as broker:
        yield broker


def make_topic(broker: Broker) -> None:
    assert broker.post(ADMIN, {"topic": "orders"}).status == 201


def push(broker: Broker, payload: str) -> Answer:
    batch = {"topic": "orders", "data": [{"payload": payload}]}
    return broker.post("/v1/push", {"namespace": "default/default", "batches": [batch]})


def offset_of(answer: Answer) -> int | None:
    """Where a pushed message is; None when it was refused."""
    (result,) = answer.body["batches"]
    return result["start_offset"] if result["_tag"] == "success" else None


def events(broker: Broker, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in broker.errors().splitlines() if line.startswith("{")]
    return [event for event in found if event["event"] == name]


def stall(broker: Broker, number: signal.Signals, stall_seconds: float) -> None:
    """Stall the loop once and return when it runs again."""
    began = time.monotonic()
    broker.signal(number)
    while time.monotonic() - began < stall_seconds:
        time.sleep(0.1)
    assert broker.get("/healthz").status == ANSWERED


class Rival(threading.Thread):
    """Pushes to the topic through another broker, until it is stopped."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker, self._stopping = broker, threading.Event()
        self.answers: list[Answer] = []

    @property
    def refused(self) -> int:
        return sum(offset_of(answer) is None for answer in self.answers)

    def run(self) -> None:
        while not self._stopping.wait(0.05):
            self.answers.append(push(self._broker, "of the rival"))

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def owner_in_etcd(etcd: EtcdServer) -> tuple[int, str]:
    """The epoch of the topic, and who owns it."""
    (entry,) = json.loads(etcd.control("get", OWNER, "--write-out=json"))["kvs"]
    return entry["create_revision"], etcd.values(OWNER)[OWNER].decode()


def owner_in_sqlite(data: Path) -> tuple[int, str]:
    """The epoch of the topic, and who owns it."""
    question = "SELECT create_revision, value FROM entries WHERE key = ?"
    with closing(sqlite3.connect(f"file:{data}/metadata/{FILE_NAME}?mode=ro", uri=True)) as file:
        epoch, value = file.execute(question, (OWNER.encode(),)).fetchone()
    return epoch, value.decode()


def check_stall_is_reported(broker: Broker, where: str) -> None:
    longest = max(events(broker, "loop_stalled"), key=lambda event: event["seconds"])
    assert longest["seconds"] >= 0.9 * STALL
    assert any(where in frame for frame in longest["frames"])
    assert broker.figure("penstock_loop_stall_max_ms") >= 900 * STALL
    assert broker.figure("penstock_loop_stall_ms_count") >= 1


@pytest.mark.feature("T26")
@pytest.mark.parametrize(("number", "where"), STALLS)
def test_a_stall_of_the_loop_past_the_lease_costs_no_topic_and_no_epoch_with_etcd(
    tmp_path: Path, etcd: EtcdServer, number: signal.Signals, where: str
) -> None:
    shared = {"storage.etcd.endpoints": etcd.endpoint}
    with (
        serving(tmp_path / "one", STALL, shared) as broker,
        serving(tmp_path / "two", STALL, shared) as other,
    ):
        make_topic(broker)
        assert offset_of(push(broker, "before")) == 0
        owner, rival = owner_in_etcd(etcd), Rival(other)
        rival.start()
        stall(broker, number, STALL)
        rival.stop()
        assert owner_in_etcd(etcd) == owner
        assert offset_of(push(broker, "after")) == 1
        assert rival.refused == len(rival.answers) > 0
        assert not events(broker, "lease_lost")
        assert not events(broker, "topic_lost")
        check_stall_is_reported(broker, where)


@pytest.mark.feature("T26")
@pytest.mark.parametrize(("number", "where"), STALLS)
def test_a_stall_of_the_loop_past_the_lease_costs_no_topic_and_no_epoch_with_sqlite(
    tmp_path: Path, number: signal.Signals, where: str
) -> None:
    with serving(tmp_path / "data", STALL) as broker:
        make_topic(broker)
        assert offset_of(push(broker, "before")) == 0
        owner = owner_in_sqlite(tmp_path / "data")
        stall(broker, number, STALL)
        assert owner_in_sqlite(tmp_path / "data") == owner
        assert offset_of(push(broker, "after")) == 1
        assert not events(broker, "lease_lost")
        assert not events(broker, "topic_lost")
        check_stall_is_reported(broker, where)


@pytest.mark.feature("T26")
def test_a_loop_that_is_stalled_past_the_limit_loses_its_topics_to_another_broker(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    shared = {
        "storage.etcd.endpoints": etcd.endpoint,
        "storage.etcd.stall_limit_seconds": "1",
        "storage.mode": "wal_cloud",
        "storage.cloud.root": str(tmp_path / "bucket"),
    }
    stall_seconds = 6 * LEASE_SECONDS
    with (
        serving(tmp_path / "one", stall_seconds, shared) as broker,
        serving(tmp_path / "two", stall_seconds, shared) as other,
    ):
        make_topic(broker)
        assert offset_of(push(broker, "before")) == 0
        (epoch, _), rival = owner_in_etcd(etcd), Rival(other)
        rival.start()
        stall(broker, signal.SIGUSR1, stall_seconds)
        rival.stop()
        assert owner_in_etcd(etcd)[0] > epoch
        assert rival.refused < len(rival.answers)
        assert offset_of(push(broker, "after")) is None
        assert events(broker, "lease_lost")
