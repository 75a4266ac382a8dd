"""etcd that crashes and comes back while brokers publish and upload.

Within the lease nothing changes for topics whose messages are safe on the broker's disk, and those
whose messages must reach the bucket wait. Longer than that, the broker refuses. Nothing that was
acknowledged is lost, uploads go on, and the manifest has no gap.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fault.bucket import Entry
from tests.fault.shared import TOPICS, Shared
from tests.fault.tier_process import History, TierProcess
from tests.servers.etcd import EtcdServer
from tests.servers.s3 import S3Server

CRASHES = 3


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.close()


def nowhere(last: Entry | None, entry: Entry) -> bool:
    """No owner changed, so no offset is left out."""
    return False


def check(shared: Shared, topic: str, lives: list[TierProcess]) -> None:
    """All of what was acknowledged is in the bucket, each offset once."""
    rows = shared.rows(topic, nowhere)
    history = History(topic, lives)
    history.check(rows)
    assert not history.missing(rows)


@pytest.mark.feature("T17", "T25", "T26")
def test_a_crash_of_etcd_under_load_stops_no_publisher_and_loses_nothing(
    tmp_path: Path, etcd: EtcdServer, seaweedfs: S3Server
) -> None:
    shared = Shared(tmp_path, etcd, seaweedfs)
    with shared.broker("one", 60, 5) as broker:
        for _ in range(CRASHES):
            for topic in TOPICS:
                broker.wait_for_more("acked", topic)
            etcd.kill()
            broker.wait_for_more("acked", "fsync")
            etcd.start()
            objects = {topic: len(shared.entries(topic)) for topic in TOPICS}
            broker.wait_for_more("acked", "cloud")
            broker.wait_until(partial(shared.uploads_went_on, objects))
        broker.stop()
        assert not broker.count("lost")
        for topic in TOPICS:
            check(shared, topic, [broker])


@pytest.mark.feature("T17", "T25", "T26")
def test_without_etcd_for_longer_than_its_lease_a_broker_refuses_and_a_restart_goes_on(
    tmp_path: Path, etcd: EtcdServer, seaweedfs: S3Server
) -> None:
    shared = Shared(tmp_path, etcd, seaweedfs)
    with shared.broker("one", 4, 1) as broker:
        for topic in TOPICS:
            broker.wait_for_more("acked", topic)
        etcd.kill()
        for topic in TOPICS:
            broker.wait_for("lost", topic)
        since = len(broker.told)
        for topic in TOPICS:
            broker.wait_for_more("refused", topic, count=5)
        etcd.start()
        broker.stop()
    late = {tuple(fact[1:4]) for fact in broker.facts("sent", since=since)}
    assert not late & {tuple(fact[1:4]) for fact in broker.facts("acked")}
    for reason in {fact[4] for fact in broker.facts("refused", since=since)}:
        assert re.search("(cannot be written now|not stored): .*owns? the topic", reason)
    with shared.broker("one", 60, 5) as again:
        for topic in TOPICS:
            again.wait_for_more("acked", topic)
        again.stop()
    for topic in TOPICS:
        check(shared, topic, [broker, again])
