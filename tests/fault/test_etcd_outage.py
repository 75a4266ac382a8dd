"""`penstock serve` whose etcd is away for longer than its lease, while it is pushed to.

It refuses and says why. Once etcd is back, topics go on where they were, also those that nobody
asks for, and nothing that was acknowledged is lost, moved or there twice.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.metadata.ownership import LEASE_ENDED
from tests.integration.process import FREE_PORT, Answer, Broker
from tests.servers.etcd import EtcdServer

TOPICS = ("fsync", "cloud")
"""Each promises what its name says."""
SETTINGS = {
    "storage.etcd.lease_seconds": "6",
    "storage.etcd.lease_margin_ms": "1000",
    "storage.etcd.call_timeout_seconds": "1",
    "storage.uploader.interval_seconds": "1",
    "storage.uploader.linger_ms": "10",
}
ADMIN = "/v1/tenants/default/namespaces/default/topics"
UNAVAILABLE = 503
WAIT_SECONDS = 60
REASONS = (
    LEASE_ENDED,
    "this broker may no longer own the topic",
    "this broker has no lease now",
    "etcd at ",
)
"""All that a refusal may say."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.close()


@pytest.fixture
def broker(tmp_path: Path, etcd: EtcdServer) -> Iterator[Broker]:
    settings = {**SETTINGS, "storage.etcd.endpoints": etcd.endpoint}
    options = [part for item in settings.items() for part in ("--set", "=".join(item))]
    with Broker("--data", str(tmp_path / "data"), *FREE_PORT, *options) as broker:
        yield broker


def make(broker: Broker, topic: str, durability: str) -> None:
    made = broker.post(ADMIN, {"topic": topic, "durability": durability})
    assert made.status == 201, made


def push(broker: Broker, topic: str, payload: str) -> Answer:
    batch = {"topic": topic, "data": [{"payload": payload}]}
    return broker.post("/v1/push", {"namespace": "default/default", "batches": [batch]})


class Pusher(threading.Thread):
    """Pushes one message after the other to a topic until it is stopped."""

    def __init__(self, broker: Broker, topic: str) -> None:
        super().__init__()
        self._broker, self._topic = broker, topic
        self._changed, self._stopping = threading.Condition(), threading.Event()
        self._sent = 0
        self.acked: dict[int, str] = {}
        """What was acknowledged, by offset."""
        self.refusals: list[str] = []

    def run(self) -> None:
        while not self._stopping.wait(0.005):
            payload = f"{self._topic} {self._sent}"
            answer = push(self._broker, self._topic, payload)
            with self._changed:
                self._sent += 1
                self._note(payload, answer)
                self._changed.notify_all()

    def _note(self, payload: str, answer: Answer) -> None:
        told = answer.body if answer.status == UNAVAILABLE else answer.body["batches"][0]
        if "message" in told:
            self.refusals.append(told["message"])
            return
        assert told["start_offset"] == told["end_offset"]
        assert told["start_offset"] not in self.acked
        self.acked[told["start_offset"]] = payload

    def wait_for_acks(self, more: int = 20) -> None:
        wanted = len(self.acked) + more
        self._wait(lambda: len(self.acked) >= wanted)

    def wait_for_refusal(self, reason: str) -> None:
        self._wait(lambda: any(reason in text for text in self.refusals))

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_SECONDS), self.refusals[-5:]


def fetched(broker: Broker, topic: str) -> dict[int, str]:
    """Everything that a reader gets, by offset, before a message that is pushed for its end."""
    ends: list[dict[str, int]] = []

    def ended() -> bool:
        (answer,) = push(broker, topic, "the end").body["batches"]
        ends.append(answer)
        return bool(answer["_tag"] == "success")

    wait_until(ended)
    last = ends[-1]
    found: dict[int, str] = {}
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found) <= last["start_offset"]:
        assert time.monotonic() < deadline, found
        place = {"topic": topic, "offset": len(found)}
        asked = {"namespace": "default/default", "timeout_ms": 5000, "topics": [place]}
        (told,) = broker.post("/v1/fetch", asked).body["topics"]
        if not told["messages"]:
            continue
        first, payloads = told["start_offset"], [one["payload"] for one in told["messages"]]
        assert (first, told["end_offset"]) == (len(found), len(found) + len(payloads) - 1)
        found |= dict(enumerate(payloads, first))
    assert found.popitem() == (last["start_offset"], "the end")
    return found


@pytest.mark.feature("T25", "T26")
def test_topics_come_back_when_etcd_does_and_go_on_where_they_were(
    broker: Broker, etcd: EtcdServer
) -> None:
    for topic in TOPICS:
        make(broker, topic, durability=topic)
    pushers = [Pusher(broker, topic) for topic in TOPICS]
    try:
        for pusher in pushers:
            pusher.start()
        for pusher in pushers:
            pusher.wait_for_acks()
        etcd.kill()
        for pusher in pushers:
            # Without a lease nothing is left of a topic here, and where it is must be asked for.
            pusher.wait_for_refusal("etcd at ")
        etcd.start()
        for pusher in pushers:
            pusher.wait_for_acks()
    finally:
        for pusher in pushers:
            pusher.stop()
    for topic, pusher in zip(TOPICS, pushers, strict=True):
        there = fetched(broker, topic)
        assert pusher.acked.items() <= there.items()
        assert len(set(there.values())) == len(there)
        for refusal in set(pusher.refusals):
            assert any(reason in refusal for reason in REASONS), refusal


@pytest.mark.feature("T25", "T26")
def test_what_was_not_uploaded_when_etcd_went_is_uploaded_without_anybody_asking(
    broker: Broker, etcd: EtcdServer, tmp_path: Path
) -> None:
    make(broker, "quiet", durability="fsync")
    assert push(broker, "quiet", "before").status == 200
    wait_until(lambda: uploaded(tmp_path) == [b"before"])
    etcd.kill()
    (pushed,) = push(broker, "quiet", "meanwhile").body["batches"]
    assert pushed == {"_tag": "success", "start_offset": 1, "end_offset": 1}
    wait_until(lambda: "lease_lost" in broker.errors())
    assert uploaded(tmp_path) == [b"before"]
    etcd.start()
    wait_until(lambda: uploaded(tmp_path) == [b"before", b"meanwhile"])
    assert fetched(broker, "quiet") == {0: "before", 1: "meanwhile"}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def uploaded(directory: Path) -> list[bytes]:
    """The payloads that lie in objects."""
    objects = sorted(directory.rglob("data-*.parquet"))
    return [payload for path in objects for payload in pq.read_table(path)["payload"].to_pylist()]
