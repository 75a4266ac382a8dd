"""Compactions that are killed midway, while readers and producers are active."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock.spark
from penstock.client import SyncClient
from penstock.formats.objects import topic_prefix
from penstock.model import names
from penstock.objects.interface import RESERVED
from penstock.spark.pipelines import audit_topic
from penstock.tiers.external.abandoned_objects import ABANDONED_SECONDS
from tests.integration.process import clean_environment
from tests.spark.conftest import QUICK_JVM
from tests.spark.dying import STEPS
from tests.spark.test_compact import compacted
from tests.spark.topics import collected, fetched, plain, plan_of, uploaded

ROOT = Path(__file__).parents[2]
PUSHES = 4
PUSHED = 300
PAYLOAD_BYTES = 1500
PAUSE_SECONDS = 0.2
LEAVING = ("half an object", "some objects", "all objects")
"""Steps after which the bucket has objects that are not in the manifest."""
SMALL = [f"spark.driver.extraJavaOptions={QUICK_JVM}", "spark.driver.memory=1g"]


def numbers(first: int, count: int) -> pa.Table:
    """Incompressible messages with their offsets: two pushes fill a MiB."""
    bodies = [b"%d %s" % (n, os.urandom(PAYLOAD_BYTES)) for n in range(first, first + count)]
    return pa.table({"payload": pa.array(bodies, pa.binary())})


@pytest.fixture(scope="module")
def topics(client: SyncClient) -> dict[str, str]:
    """A topic of several objects for each step."""
    made = {step: f"killed-{number}" for number, step in enumerate(STEPS)}
    for topic in made.values():
        client.create_topic(topic)
    for first in range(0, PUSHES * PUSHED, PUSHED):
        for topic in made.values():
            client.push(topic, numbers(first, PUSHED))
        for topic in made.values():
            uploaded(client, topic)
    return made


class Traffic:
    """A producer and a reader that run until the end of the context."""

    def __init__(self, url: str, topic: str) -> None:
        self._url, self._topic = url, topic
        self.pushed = PUSHES * PUSHED
        self.rounds = 0
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        works = (self._push, self._read)
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, work: Callable[[SyncClient], None]) -> None:
        try:
            with SyncClient(self._url) as client:
                while not self._stop.is_set():
                    work(client)
        except BaseException as error:
            self.failures.append(error)

    def _push(self, client: SyncClient) -> None:
        client.push(self._topic, [b"%d " % n for n in range(self.pushed, self.pushed + 10)])
        self.pushed += 10
        self._stop.wait(PAUSE_SECONDS)

    def _read(self, client: SyncClient) -> None:
        """Read all messages that existed at the start of the round."""
        end, offset = self.pushed, 0
        while offset < end:
            got = client.fetch(self._topic, offset, timeout_ms=2000, max_messages=500)
            found = [int(row.partition(b" ")[0]) for row in got.table["payload"].to_pylist()]
            assert found == list(range(offset, offset + len(found)))
            offset = got.next_offset
        self.rounds += 1
        self._stop.wait(PAUSE_SECONDS)


def killed(url: str, topic: str, step: str) -> None:
    """Run the command and check that it was killed."""
    confs = [part for setting in SMALL for part in ("--conf", setting)]
    arguments = ["pipeline", "compact", topic, "--object-mib", "1", "--url", url, *confs]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.dying", step, *arguments],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def files_of(client: SyncClient, topic: str) -> Iterator[Path]:
    """All files of a topic in the bucket, complete or partial, except snapshots of the manifest."""
    store = plan_of(client, topic).store
    assert store is not None
    for path in (Path(store.root) / topic_prefix(names.topic(topic))).iterdir():
        if path.name.removeprefix(RESERVED).startswith(("data-", "staged-")):
            yield path


def named(client: SyncClient, topic: str) -> set[str]:
    return {item.key.rpartition("/")[2] for item in plan_of(client, topic).objects}


def first_offset(name: str) -> int:
    """The first offset of an object, from its name."""
    return int(name.removeprefix(RESERVED).split("-")[4])


def make_old(path: Path) -> None:
    """Rename a file as if it were old enough to be swept."""
    made = path.name.removeprefix(RESERVED).split("-")[1]
    aged = f"{int(made) - ABANDONED_SECONDS * 1_000_000:017d}"
    path.rename(path.with_name(path.name.replace(made, aged, 1)))


@pytest.mark.feature("S05")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_compaction_loses_and_repeats_no_message_and_leaves_no_objects(
    spark: SparkSession, client: SyncClient, url: str, topics: dict[str, str], step: str
) -> None:
    topic = topics[step]
    before = named(client, topic)
    assert len(before) >= PUSHES
    planned = penstock.spark.topic(spark, topic, endingOffsets=PUSHES * PUSHED)
    expected = plain(fetched(client, topic))
    with Traffic(url, topic) as traffic:
        killed(url, topic, step)
        assert collected(planned) == expected
    assert traffic.failures == []
    assert traffic.rounds
    uploaded(client, topic)
    now = named(client, topic)
    there = {path.name for path in files_of(client, topic)}
    assert now <= there
    swapped = bool(before - now)
    assert swapped == (step in ("answered", "sweeping")) or step == "asked"
    left = {name for name in there - now - before if first_offset(name) < PUSHES * PUSHED}
    assert bool(left) == (step in LEAVING) or step in ("asked", "answered")
    assert any(name.startswith(RESERVED) for name in left) == (step == "half an object")
    found = audit_topic(spark, topic)
    assert found.sound
    told = {item.object.rpartition("/")[2] for item in found.findings}
    assert told >= {name for name in left if not name.startswith(RESERVED)} or step == "asked"

    assert compacted(spark, topic, 1 << 30).objects_after == 1
    for path in [path for path in files_of(client, topic) if path.name not in named(client, topic)]:
        make_old(path)
    compacted(spark, topic, 1 << 30)
    assert {path.name for path in files_of(client, topic)} == named(client, topic)
    payloads = [row["payload"] for row in fetched(client, topic)]
    assert [int(body.partition(b" ")[0]) for body in payloads] == list(range(traffic.pushed))
    assert collected(penstock.spark.topic(spark, topic)) == plain(fetched(client, topic))
    assert audit_topic(spark, topic).findings == []
