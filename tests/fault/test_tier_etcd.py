"""etcd that crashes and comes back while brokers publish and upload.

Within the lease nothing changes for topics whose messages are safe on the broker's disk, and those
whose messages must reach the bucket wait. Longer than that, the broker refuses. Nothing that was
acknowledged is lost, uploads go on, and the manifest has no gap.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.metadata.ownership import LEASE_ENDED
from tests.fault.bucket import Entry
from tests.fault.shared import Shared
from tests.fault.tier_child import topics_of
from tests.fault.tier_process import History, TierProcess
from tests.servers.etcd import EtcdServer
from tests.servers.s3 import S3Server

CRASHES = 3
FSYNC, CLOUD = topics_of(0)


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
    rows = shared.rows(shared.kept(), topic, nowhere)
    history = History(topic, lives)
    history.check(rows)
    assert not history.missing(rows)


@pytest.mark.feature("T17", "T25", "T26")
def test_a_crash_of_etcd_under_load_stops_no_publisher_and_loses_nothing(
    tmp_path: Path, etcd: EtcdServer, seaweedfs: S3Server
) -> None:
    shared = Shared(tmp_path, etcd, seaweedfs)
    with shared.process("one", 60, 5) as broker:
        for _ in range(CRASHES):
            for topic in shared.topics:
                broker.wait_for_more("acked", topic)
            etcd.kill()
            broker.wait_for_more("acked", FSYNC)
            etcd.start()
            objects = shared.objects()
            broker.wait_for_more("acked", CLOUD)
            broker.wait_until(partial(shared.uploads_went_on, objects))
        broker.stop()
        assert not broker.count("lost")
        for topic in shared.topics:
            check(shared, topic, [broker])


@pytest.mark.feature("T17", "T25", "T26")
def test_without_etcd_for_longer_than_its_lease_a_broker_refuses_and_a_restart_goes_on(
    tmp_path: Path, etcd: EtcdServer, seaweedfs: S3Server
) -> None:
    shared = Shared(tmp_path, etcd, seaweedfs)
    with shared.process("one", 4, 1) as broker:
        for topic in shared.topics:
            broker.wait_for_more("acked", topic)
        etcd.kill()
        for topic in shared.topics:
            broker.wait_for("lost", topic)
        since = len(broker.told)
        for topic in shared.topics:
            broker.wait_for_more("refused", topic, count=5)
        etcd.start()
        broker.stop()
    late = {tuple(fact[1:4]) for fact in broker.facts("sent", since=since)}
    assert not late & {tuple(fact[1:4]) for fact in broker.facts("acked")}
    reasons = {fact[4] for fact in broker.facts("refused", since=since)}
    assert any(LEASE_ENDED in reason for reason in reasons)
    for reason in reasons:
        assert LEASE_ENDED in reason or "this broker may no longer own the topic" in reason
    with shared.process("one", 60, 5) as again:
        for topic in shared.topics:
            again.wait_for_more("acked", topic)
        again.stop()
    for topic in shared.topics:
        check(shared, topic, [broker, again])
