"""Jobs in every state after the process was killed, and after a clean stop."""

import signal
import threading
import time
from pathlib import Path

import pytest

from tests.integration.channels.api import (
    Api,
    Call,
    Channel,
    Consumer,
    Receiver,
    eventually,
    serving,
)

pytestmark = pytest.mark.feature("C15")


def kill(broker: object) -> None:
    broker.signal(signal.SIGKILL)  # type: ignore[attr-defined]
    broker.wait()  # type: ignore[attr-defined]


def known(api: Api, id_: str, consumer: str) -> Consumer:
    """A consumer that was made before the restart."""
    channel = object.__new__(Channel)
    channel.api, channel.id = api, id_
    return Consumer(channel, consumer)


def test_every_state_survives_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        channel = Channel(Api(broker.host, broker.port), "c")
        consumer = channel.consumer("one")
        for number in range(6):
            channel.sent(str(number), X_Broker_Message_Priority=str(number % 2))
        jobs = {job["Message"]["Payload"]: job["ID"] for job in consumer.queued()}
        consumer.move(jobs["1"], "INFLIGHT", 3600)
        consumer.move(jobs["2"], "INFLIGHT")
        consumer.move(jobs["2"], "DELIVERED")
        for _ in range(2):
            consumer.move(jobs["3"], "INFLIGHT")
            consumer.move(jobs["3"], "DEAD")
        (lease,) = [
            job["Lease"]
            for job in consumer.request("POST", "/claim?limit=1&timeout=3600").json["Result"]
        ]
        before = {n: consumer.request("GET", f"/job/{id_}").json for n, id_ in jobs.items()}
        counts = channel.api.get("/job-status").json
        kill(broker)
    for _ in range(2):
        with serving(tmp_path) as broker:
            consumer = known(Api(broker.host, broker.port), "c", "one")
            after = {n: consumer.request("GET", f"/job/{id_}").json for n, id_ in jobs.items()}
            assert after == before
            assert consumer.channel.api.get("/job-status").json == counts
            assert consumer.payloads() == ["0", "4"]
            kill(broker)
    with serving(tmp_path) as broker:
        consumer = known(Api(broker.host, broker.port), "c", "one")
        assert consumer.move(jobs["5"], "DELIVERED", X_Broker_Lease=lease).status == 202
        consumer.move(jobs["3"], "INFLIGHT")
        consumer.move(jobs["3"], "DEAD")
        assert consumer.request("DELETE", f"/job/{jobs['3']}").status == 204


def test_every_state_survives_a_clean_stop(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        channel = Channel(Api(broker.host, broker.port), "c")
        consumer = channel.consumer("one")
        for number in range(5):
            channel.sent(str(number), X_Broker_Message_Priority=str(number))
        first, second, *_ = (job["ID"] for job in consumer.queued())
        consumer.move(first, "INFLIGHT", 3600)
        consumer.move(second, "INFLIGHT")
        consumer.move(second, "DELIVERED")
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
    with serving(tmp_path) as broker:
        consumer = known(Api(broker.host, broker.port), "c", "one")
        assert consumer.payloads() == ["2", "1", "0"]
        assert [consumer.state(job) for job in (first, second)] == ["INFLIGHT", "DELIVERED"]


def test_accepted_messages_are_delivered_after_a_kill(tmp_path: Path, receiver: Receiver) -> None:
    hold = threading.Event()

    def held(call: Call) -> tuple[int, dict[str, str]]:
        hold.wait(20)
        return 200, {}

    receiver.answer = held
    with serving(tmp_path, "--set", "channels.push.timeout_ms=60000") as broker:
        channel = Channel(Api(broker.host, broker.port), "c")
        consumer = channel.consumer("one", receiver.url(), "push")
        form = {"Content_Type": "application/x-www-form-urlencoded"}
        consumer.request("PUT", "/limits", "concurrency=1", **form)
        for number in range(3):
            channel.sent(str(number))
        eventually(lambda: receiver.calls)
        kill(broker)
    hold.set()
    receiver.calls.clear()
    with serving(tmp_path) as broker:
        api = Api(broker.host, broker.port)
        eventually(lambda: len(receiver.calls) == 3)
        assert [call.body for call in receiver.calls] == [b"0", b"1", b"2"]
        eventually(lambda: api.get("/job-status").json["c"]["one"][0]["status"] == 1003)
        kill(broker)
    receiver.calls.clear()
    with serving(tmp_path):
        time.sleep(0.5)
        assert receiver.calls == []


def test_retries_are_counted_across_kills(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda call: (500, {})
    with serving(tmp_path, "--set", "channels.push.backoff_seconds=3600") as broker:
        channel = Channel(Api(broker.host, broker.port), "c")
        channel.consumer("one", receiver.url(), "push")
        location = channel.sent()
        eventually(lambda: receiver.calls and channel.statuses(location) == ["QUEUED"])
        time.sleep(0.2)
        kill(broker)
    with serving(tmp_path, "--set", "channels.push.backoff_seconds=3600") as broker:
        channel.api.port = broker.port
        time.sleep(0.5)
        assert len(receiver.calls) == 1
        since = channel.api.get(f"{channel.path}/consumer/one").headers["last-modified"]
        fields = {"token": "k-one", "callbackUrl": receiver.url(), "type": "pull"}
        channel.api.put(f"{channel.path}/consumer/one", fields, If_Unmodified_Since=since)
        consumer = Consumer(channel, "one")
        (job,) = consumer.queued()
        for _ in range(2):
            consumer.move(job["ID"], "INFLIGHT")
            consumer.move(job["ID"], "DEAD")
        assert consumer.request("DELETE", f"/job/{job['ID']}").status == 204


def test_sigterm_lets_a_running_call_end(tmp_path: Path, receiver: Receiver) -> None:
    def slow(call: Call) -> tuple[int, dict[str, str]]:
        time.sleep(1.0)
        return 200, {}

    receiver.answer = slow
    with serving(tmp_path) as broker:
        channel = Channel(Api(broker.host, broker.port), "c")
        channel.consumer("one", receiver.url(), "push")
        channel.sent()
        eventually(lambda: receiver.calls)
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
    with serving(tmp_path) as broker:
        status = Api(broker.host, broker.port).get("/job-status").json["c"]["one"]
        assert [(row["status"], row["count"]) for row in status] == [(1003, 1)]
    assert len(receiver.calls) == 1


@pytest.mark.feature("C14")
def test_a_scheduled_message_survives_a_kill_and_is_sent_once(tmp_path: Path) -> None:
    from tests.integration.channels.test_broadcast import in_seconds, later

    with serving(tmp_path) as broker:
        channel = Channel(Api(broker.host, broker.port), "c")
        channel.consumer("one")
        assert later(channel, in_seconds(8), X_Broker_Message_ID="s").status == 201
        kill(broker)
    with serving(tmp_path) as broker:
        consumer = known(Api(broker.host, broker.port), "c", "one")
        eventually(lambda: consumer.payloads() == ["later"])
        kill(broker)
    with serving(tmp_path) as broker:
        consumer = known(Api(broker.host, broker.port), "c", "one")
        time.sleep(0.5)
        assert consumer.payloads() == ["later"]
        assert consumer.channel.broadcast("x", X_Broker_Message_ID="s").status == 409


@pytest.mark.feature("C21")
def test_a_replay_by_time_begins_in_the_bucket(tmp_path: Path) -> None:
    """Messages that are only in objects are delivered again like those of the WAL."""
    eager = (
        "storage.uploader.interval_seconds=1",
        "storage.uploader.max_batch_bytes=65536",
        "storage.wal.retention.min_minutes=0",
        "storage.wal.retention.min_bytes=0",
        "storage.wal.max_file_bytes=4096",
        "storage.wal.cache.max_bytes=0",
    )
    arguments = [part for setting in eager for part in ("--set", setting)]
    with serving(tmp_path, *arguments) as broker:
        channel = Channel(Api(broker.host, broker.port), "c")
        consumer = channel.consumer("one")
        locations = [channel.sent("x" * 1000) for _ in range(20)]
        since = channel.api.get(locations[0]).json["ReceivedAt"]
        for job in consumer.queued("?limit=100"):
            consumer.move(job["ID"], "INFLIGHT", 3600)
            consumer.move(job["ID"], "DELIVERED")
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
    with serving(tmp_path, *arguments) as broker:
        consumer = known(Api(broker.host, broker.port), "c", "one")

        def first_messages_are_in_objects_only() -> bool:
            consumer.channel.sent("more")
            files = sorted(path.name for path in tmp_path.rglob("wal-*.log"))
            return files[0] > "wal-0000000003"

        eventually(first_messages_are_in_objects_only)
        replayed = consumer.request("POST", "/replay", f'{{"From": "{since}"}}').json
        assert replayed == {"requeuedCount": 20}
