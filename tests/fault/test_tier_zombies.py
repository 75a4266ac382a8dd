"""Brokers that are stopped for longer than their leases, succeeded by others, and then go on.

None acknowledges anything that it is sent after that, and none of its writes lands; what was
promised to survive the loss of a machine is there, and no offset is given twice, over a chain of
owners. A process hosts many brokers, each with a lease, a disk and topics of its own.
"""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.fault.bucket import Entry
from tests.fault.shared import Shared
from tests.fault.tier_child import NOBODYS
from tests.fault.tier_process import History, TierProcess
from tests.servers.etcd import EtcdServer
from tests.servers.s3 import S3Server

BROKERS, TAKEOVERS = 25, 4
"""Together a hundred zombies."""
LEASE = (8, 2.0)
"""Seconds, and those at its end in which nothing is acknowledged; a busy machine needs some."""
REFUSED = ("commit", "drop", "session")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.close()


@pytest.mark.timeout(400)
@pytest.mark.feature("T03", "T17", "T26")
def test_nothing_of_a_broker_that_was_stopped_past_its_lease_lands(
    tmp_path: Path, etcd: EtcdServer, seaweedfs: S3Server
) -> None:
    shared, chance = Shared(tmp_path, etcd, seaweedfs, BROKERS), random.Random(7)
    with ExitStack() as stack:
        owners = [stack.enter_context(shared.process("owner-0", *LEASE))]
        for number in range(TAKEOVERS):
            owner = owners[-1]
            owner.wait_for_each("owns", shared.topics, since=0)
            heir = stack.enter_context(shared.process(f"owner-{number + 1}", *LEASE))
            heir.wait_for("tries")
            owner.wait_for_each("acked", shared.topics, count=2)
            owner.wait_until(partial(uploaded, shared, owner))
            time.sleep(chance.random() * 0.2)
            outlive(shared, owner, heir)
            owners.append(heir)
        rows = owners[-1].read()
        owners[-1].stop()
    kept = shared.kept()
    for topic in shared.topics:
        at_end = shared.rows(kept, topic, owner_changed)
        assert rows[topic].items() <= at_end.items()
        epochs = [entry["epoch"] for entry in kept.entries(topic)]
        assert epochs == sorted(epochs)
        assert set(epochs) == {owner.epochs()[topic] for owner in owners}
        history = History(topic, owners)
        history.check(at_end)
        history.check_only_ends_missing(at_end)
        if topic.startswith("cloud"):
            assert not history.missing(at_end)


def uploaded(shared: Shared, owner: TierProcess) -> bool:
    """Whether this owner of every topic has put objects of its own into the manifest."""
    kept, epochs = shared.kept(), owner.epochs()
    return all(kept.entries_of_epoch(topic, epochs[topic]) for topic in shared.topics)


def owner_changed(last: Entry | None, entry: Entry) -> bool:
    """Only there a gap may be."""
    return last is not None and entry["epoch"] > last["epoch"]


def outlive(shared: Shared, zombie: TierProcess, heir: TierProcess) -> None:
    """Stop the owners until the heirs own and publish, let them go on, and look at what they do."""
    zombie.signal(signal.SIGSTOP)
    heir.wait_for_each("owns", shared.topics, since=0)
    heir.wait_for_each("acked", shared.topics)
    old, new, before = zombie.epochs(), heir.epochs(), shared.kept()
    assert all(new[topic] > old[topic] for topic in shared.topics)
    since = len(zombie.told)
    zombie.signal(signal.SIGCONT)
    zombie.wait_for_each("lost", shared.topics, since=since)
    zombie.ask("try")
    zombie.wait_for_each("tried", shared.topics, since=since)
    zombie.wait_for_each("refused", shared.topics, count=3)
    zombie.kill()
    for _, _, tried in zombie.facts("tried"):
        assert tried.pop("round") in ("done", "Deposed")
        assert tried.pop("append") == "DurabilityUnmet"
        assert tried.pop("progress") == "NotOwner"
        assert tried == dict.fromkeys(REFUSED, "Deposed")
    late = {tuple(fact[1:4]) for fact in zombie.facts("sent", since=since)}
    assert not late & {tuple(fact[1:4]) for fact in zombie.facts("acked")}
    heir.wait_for_each("acked", shared.topics)
    after = shared.kept()
    for topic in shared.topics:
        assert after.head(topic)["epoch"] == new[topic]
        made = before.entries_of_epoch(topic, old[topic])
        assert after.entries_of_epoch(topic, old[topic]) == made
        assert after.position(topic) < NOBODYS
