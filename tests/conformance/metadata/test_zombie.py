"""A broker stopped past its lease: it acknowledges nothing and none of its writes lands."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from penstock.metadata import MetadataKeys, Put
from penstock.metadata.etcd import EtcdMetadata, EtcdSettings
from penstock.metadata.ownership import LeaseTerms, Ownership
from tests.conformance.metadata.zombie import topics
from tests.eventually import PAUSE_SECONDS, WAIT_SECONDS
from tests.servers.etcd import EtcdServer

ROOT = Path(__file__).parents[3]
COUNT = 100


@pytest.mark.feature("T26")
@pytest.mark.asyncio(loop_scope="session")
async def test_no_write_of_a_broker_that_was_stopped_past_its_lease_lands(
    etcd_server: EtcdServer, root: str
) -> None:
    store, keys = EtcdMetadata(EtcdSettings((etcd_server.endpoint,), 30.0)), MetadataKeys(root)
    heir = Ownership(store, keys, "heir", "heir:1", lambda *_: None, LeaseTerms(600, 60))
    await heir.start()
    module = "tests.conformance.metadata.zombie"
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, etcd_server.endpoint, root, str(COUNT)),
        stdin=PIPE,
        stdout=PIPE,
        cwd=ROOT,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            assert await child.stdout.readline() == b"ready\n"
            assert await heir.acquire(topics(COUNT)[0]) is None
            child.send_signal(signal.SIGSTOP)
            for topic in topics(COUNT):
                while await heir.acquire(topic) is None:
                    await asyncio.sleep(PAUSE_SECONDS)
                await store.transaction([heir.guard(topic)], [Put(keys.manifest(topic), b"heir")])
            child.send_signal(signal.SIGCONT)
            child.stdin.write(b"go on\n")
            facts = json.loads(await child.stdout.readline())
            assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert facts == {
        "could_ack": COUNT,
        "may_ack": 0,
        "succeeded": 0,
        "refused": COUNT,
        "lost": COUNT,
    }
    for topic in topics(COUNT):
        manifest = await store.get(keys.manifest(topic))
        assert manifest is not None
        assert manifest.value == b"heir"
        position = await store.get(keys.progress(topic, "s"))
        assert position is not None
        assert json.loads(position.value)["offset"] == 0
    await heir.close()
    await store.close()
