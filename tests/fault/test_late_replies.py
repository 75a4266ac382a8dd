"""Owners that are stopped past their leases under load: no success reply leaves after that.

Publishers keep their connections open while the owner is stopped, so they read what it had sent
before. Whatever success they receive once it runs again was sent after its lease ended, while
another broker owned the topic and took messages.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.integration.process import FREE_PORT, Answer, Broker
from tests.servers.etcd import EtcdServer

ROUNDS = int(os.environ.get("LATE_REPLY_ROUNDS", "4"))
"""About five seconds each."""
LEASE_SECONDS = 2
SETTINGS = {
    "storage.etcd.lease_seconds": str(LEASE_SECONDS),
    "storage.etcd.lease_margin_ms": "500",
    "storage.mode": "wal_cloud",
}
ADMIN = "/v1/tenants/default/namespaces/default/topics"
PUBLISHERS = 3
"""Of each kind."""
WINDOW = 20
"""Messages that a NATS publisher sends before it waits for their replies."""
WAIT_SECONDS = 60.0
RECEIVE_BYTES = 1 << 16
STORED = re.compile(rb'\{"stream":"orders","seq":\d+\}')


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.close()


def serve(etcd: EtcdServer, directory: Path, name: str) -> Broker:
    settings = {
        **SETTINGS,
        "storage.etcd.endpoints": etcd.endpoint,
        "storage.cloud.root": str(directory / "bucket"),
    }
    options = [part for item in settings.items() for part in ("--set", "=".join(item))]
    return Broker("--data", str(directory / name), *FREE_PORT, *options)


class Publisher(threading.Thread):
    """Publishes over one connection, as fast as replies come, until the connection is closed or
    it is stopped.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.stopping = False
        self.successes = 0
        self.refusals = 0

    def run(self) -> None:
        with suppress(OSError, HTTPException):
            self.publish()

    def publish(self) -> None:
        raise NotImplementedError


class HttpPublisher(Publisher):
    """Pushes one message at a time."""

    def publish(self) -> None:
        batch = {"topic": "orders", "data": [{"payload": "over HTTP"}]}
        body = json.dumps({"namespace": "default/default", "batches": [batch]})
        headers = {"content-type": "application/json"}
        with closing(HTTPConnection(self.broker.host, self.broker.port, timeout=30)) as connection:
            while not self.stopping:
                connection.request("POST", "/v1/push", body, headers)
                with closing(connection.getresponse()) as response:
                    text = response.read()
                if response.status == 200 and json.loads(text)["batches"][0]["_tag"] == "success":
                    self.successes += 1
                else:
                    self.refusals += 1


class NatsPublisher(Publisher):
    """Publishes a window of messages at a time."""

    def publish(self) -> None:
        host, port = self.broker.nats_url.removeprefix("nats://").split(":")
        with socket.create_connection((host, int(port)), 30) as connection:
            inbox = b"_INBOX.%d" % id(self)
            connection.sendall(b'CONNECT {"headers":true}\r\nSUB %b 1\r\n' % inbox)
            while not self.stopping:
                connection.sendall(b"PUB orders %b 9\r\nover NATS\r\n" % inbox * WINDOW)
                received, replies = b"", 0
                while replies < WINDOW:
                    data = connection.recv(RECEIVE_BYTES)
                    if not data:
                        return
                    received += data
                    whole, _, received = received.rpartition(b"\r\n")
                    stored = len(STORED.findall(whole))
                    self.successes += stored
                    replies += stored
                    if b'"error"' in whole:
                        self.refusals += 1
                        return


def push(broker: Broker) -> Answer:
    batch = {"topic": "orders", "data": [{"payload": "of the successor"}]}
    return broker.post("/v1/push", {"namespace": "default/default", "batches": [batch]})


def stored(answer: Answer) -> bool:
    return answer.status == 200 and answer.body["batches"][0]["_tag"] == "success"


def wait_for_success(publisher: Publisher, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while publisher.successes < count:
        assert time.monotonic() < deadline, f"{type(publisher).__name__} got no reply"
        time.sleep(0.01)


def take_over(broker: Broker) -> None:
    """Have the broker own the topic and take messages."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not stored(push(broker)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stop_past_lease(owner: Broker, heir: Broker, pause_seconds: float) -> dict[str, int]:
    """The success replies that left after the owner's lease had ended, by kind of publisher."""
    kinds = (HttpPublisher, NatsPublisher)
    publishers = [kind(owner) for kind in kinds for _ in range(PUBLISHERS)]
    for publisher in publishers:
        publisher.start()
    for publisher in publishers:
        wait_for_success(publisher, 2 * WINDOW)
    time.sleep(pause_seconds)
    owner.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, owner.process.pid, os.WSTOPPED | os.WNOWAIT)
    take_over(heir)
    before = [publisher.successes for publisher in publishers]
    owner.signal(signal.SIGCONT)
    # It answers others again, so it has sent what it had to send; the topic is another's.
    for _ in range(20):
        assert not stored(push(owner))
    for publisher in publishers:
        publisher.stopping = True
        publisher.join(WAIT_SECONDS)
        assert not publisher.is_alive()
    late: dict[str, int] = {}
    for publisher, count in zip(publishers, before, strict=True):
        kind = type(publisher).__name__
        late[kind] = late.get(kind, 0) + publisher.successes - count
    return late


@pytest.mark.timeout(30 * ROUNDS + 60)
@pytest.mark.feature("T26")
def test_no_success_reply_leaves_an_owner_that_was_stopped_past_its_lease(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    chance = random.Random(11)
    with ExitStack() as stack:
        owner, heir = (stack.enter_context(serve(etcd, tmp_path, name)) for name in ("one", "two"))
        assert owner.post(ADMIN, {"topic": "orders"}).status == 201
        for number in range(ROUNDS):
            late = stop_past_lease(owner, heir, chance.random() * 0.2)
            assert late == {"HttpPublisher": 0, "NatsPublisher": 0}, f"round {number}"
            owner, heir = heir, owner
