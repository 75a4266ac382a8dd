"""A broker that is stopped for longer than its lease, succeeded by another, and then goes on.

It acknowledges nothing that it is sent after that, and none of its writes lands; what was promised
to survive the loss of a machine is there, and no offset is given twice, over a chain of owners.
"""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fault.bucket import Entry
from tests.fault.shared import TOPICS, Shared
from tests.fault.tier_process import History, TierProcess
from tests.servers.etcd import EtcdServer
from tests.servers.s3 import S3Server

TAKEOVERS = 3
LEASE = (6, 1.5)
"""Seconds, and those at its end in which nothing is acknowledged; a busy machine needs some."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.close()


@pytest.mark.feature("T03", "T17", "T26")
def test_nothing_of_a_broker_that_was_stopped_past_its_lease_lands(
    tmp_path: Path, etcd: EtcdServer, seaweedfs: S3Server
) -> None:
    shared, chance = Shared(tmp_path, etcd, seaweedfs), random.Random(7)
    with ExitStack() as stack:
        owners = [stack.enter_context(shared.broker("owner-0", *LEASE))]
        for number in range(TAKEOVERS):
            owner = owners[-1]
            for topic in TOPICS:
                owner.wait_for("owns", topic)
            heir = stack.enter_context(shared.broker(f"owner-{number + 1}", *LEASE))
            heir.wait_for("tries")
            for topic in TOPICS:
                owner.wait_for_more("acked", topic)
            time.sleep(chance.random() * 0.2)
            outlive(shared, owner, heir)
            owners.append(heir)
        last = owners[-1]
        rows = last.read()
        last.stop()
    for topic in TOPICS:
        at_end = shared.rows(topic, owner_changed)
        assert rows[topic].items() <= at_end.items()
        epochs = [entry["epoch"] for entry in shared.entries(topic)]
        assert epochs == sorted(epochs)
        history = History(topic, owners)
        history.check(at_end)
        history.check_only_ends_missing(at_end)
        if topic == "cloud":
            assert not history.missing(at_end)


def owner_changed(last: Entry | None, entry: Entry) -> bool:
    """Only there a gap may be."""
    return last is not None and entry["epoch"] > last["epoch"]


def outlive(shared: Shared, zombie: TierProcess, heir: TierProcess) -> None:
    """Stop the owner until the heir owns and publishes, let it go on, and look at what it does."""
    zombie.signal(signal.SIGSTOP)
    epochs = {topic: zombie.wait_for("owns", topic)[2] for topic in TOPICS}
    for topic in TOPICS:
        assert heir.wait_for("owns", topic)[2] > epochs[topic]
        heir.wait_for_more("acked", topic)
    before = {topic: entries_of_epoch(shared, topic, epochs[topic]) for topic in TOPICS}
    since = len(zombie.told)
    zombie.signal(signal.SIGCONT)
    for topic in TOPICS:
        zombie.wait_for("lost", topic, since=since)
    zombie.ask("try")
    for topic in TOPICS:
        _, _, tried = zombie.wait_for("tried", topic, since=since)
        assert tried.pop("round") in ("done", "Deposed")
        assert tried.pop("append") in ("DurabilityUnmet", "LogReadOnly")
        assert tried == dict.fromkeys(("commit", "drop", "session"), "Deposed")
    for topic in TOPICS:
        zombie.wait_for_more("refused", topic, count=5)
    zombie.kill()
    late = {tuple(fact[1:4]) for fact in zombie.facts("sent", since=since)}
    assert not late & {tuple(fact[1:4]) for fact in zombie.facts("acked")}
    for topic in TOPICS:
        heir.wait_for_more("acked", topic)
        assert shared.head(topic)["epoch"] == heir.wait_for("owns", topic)[2]
        assert entries_of_epoch(shared, topic, epochs[topic]) == before[topic]


def entries_of_epoch(shared: Shared, topic: str, epoch: int) -> list[Entry]:
    """Of the manifest, those whose objects this owner made."""
    return [entry for entry in shared.entries(topic) if entry["epoch"] == epoch]
