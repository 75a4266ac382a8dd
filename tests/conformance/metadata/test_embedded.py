"""What only the embedded store promises: group commit, restarts and crashes of its own process."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from penstock.metadata import KeyChange, MetadataEntry, Revision
from penstock.metadata.sqlite import SqliteMetadata
from tests.conformance.metadata.watching import watched
from tests.faults import keep_alive

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.feature("T25")


async def test_requests_that_wait_together_share_a_commit(tmp_path: Path) -> None:
    store = await SqliteMetadata.open(tmp_path)
    await asyncio.gather(*(store.put(f"/{number}", b"") for number in range(2000)))
    requests, commits = store.counts
    assert requests == 2000
    # Some may go before all of them wait, the rest in groups of a thousand.
    assert commits <= 20
    assert len((await store.range("/", limit=5000)).entries) == 2000
    await store.close()


async def test_writers_that_wait_for_their_answers_share_commits(tmp_path: Path) -> None:
    store = await SqliteMetadata.open(tmp_path)

    async def write(writer: int) -> None:
        for number in range(20):
            await store.put(f"/{writer}/{number}", b"")

    await asyncio.gather(*(write(writer) for writer in range(100)))
    requests, commits = store.counts
    assert requests == 2000
    assert commits <= 200
    await store.close()


async def test_a_restart_continues_revisions_keys_history_and_leases(tmp_path: Path) -> None:
    store = await SqliteMetadata.open(tmp_path)
    lease = await store.grant(3600)
    made = await store.put("/a", b"1")
    changed = await store.put("/a", b"2", lease)
    await store.close()
    store = await SqliteMetadata.open(tmp_path)
    assert await store.get("/a") == MetadataEntry("/a", b"2", made, changed, 2, lease)
    assert await keep_alive(store, lease) == 3600
    assert await store.put("/b", b"") == changed + 1
    assert await store.grant(3600) != lease
    assert await watched(store, "/", Revision(1), 3) == [
        KeyChange("/a", b"1", made),
        KeyChange("/a", b"2", changed),
        KeyChange("/b", b"", Revision(changed + 1)),
    ]
    await store.close()


async def test_a_process_that_is_killed_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    answered: dict[str, int] = {}
    for round_ in range(5):
        child = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "tests.conformance.metadata.victim",
                str(tmp_path),
                str(round_),
            ),
            stdout=PIPE,
            cwd=ROOT,
        )
        assert child.stdout is not None
        for _ in range(200):
            key, _, revision = (await child.stdout.readline()).decode().partition(" ")
            answered[key] = int(revision)
        child.send_signal(signal.SIGKILL)
        # What it printed before it died counts too, but for a line that was cut.
        rest = (await child.stdout.read()).decode()
        for line in rest.splitlines(keepends=True):
            if line.endswith("\n"):
                key, _, revision = line.partition(" ")
                answered[key] = int(revision)
        await child.wait()

        store = await SqliteMetadata.open(tmp_path)
        found: dict[str, int] = {}
        page = await store.range("/", limit=5000)
        found.update((entry.key, entry.mod_revision) for entry in page.entries)
        while page.more:
            page = await store.range("/", after=page.entries[-1].key, limit=5000)
            found.update((entry.key, entry.mod_revision) for entry in page.entries)
        assert answered.items() <= found.items()
        assert len(set(found.values())) == len(found)
        assert page.revision == max(found.values())
        await store.close()
