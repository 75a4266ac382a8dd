"""The embedded store compared with a model of dicts, and its lifecycle."""

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from penstock.metadata.interface import (
    Compare,
    CompareTarget,
    DeleteKeys,
    HistoryCompacted,
    KeyChange,
    LeaseExpired,
    LeaseId,
    MetadataEntry,
    MetadataUnavailable,
    Put,
    Revision,
    TransactionResult,
)
from penstock.metadata.sqlite.metadata import SqliteMetadata
from penstock.metadata.sqlite.store import HistoryLimits
from penstock.metadata.sqlite.tables import read_changes
from tests.eventually import eventually
from tests.faults import keep_alive
from tests.unit.metadata.clocks import StillClock

MEMORY = Path("/dev/shm")
HISTORY = HistoryLimits(changes_max=12, bytes_max=1 << 20)

keys = st.sampled_from(["/a", "/a/1", "/a/2", "/a0", "/b", "/b/é", "/b/\0"])
values = st.sampled_from([b"", b"1", b"\xff" * 50])


class Held(NamedTuple):
    seconds: int
    ends_ns: int


class Model:
    """The expected content of the store."""

    def __init__(self) -> None:
        self.entries: dict[str, MetadataEntry] = {}
        self.revision = Revision(1)
        self.changes: list[KeyChange] = []
        self.leases: dict[LeaseId, Held] = {}

    def holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        if entry is None:
            return compare.target is not CompareTarget.VALUE and compare.equals == 0
        return bool(getattr(entry, compare.target.value) == compare.equals)

    def make(self, changes: list[Put | DeleteKeys]) -> None:
        new_changes: list[KeyChange] = []
        revision = Revision(self.revision + 1)
        for change in changes:
            if isinstance(change, Put):
                before = self.entries.get(change.key)
                created, version = (
                    (revision, 1)
                    if before is None
                    else (before.create_revision, before.version + 1)
                )
                self.entries[change.key] = MetadataEntry(
                    change.key, change.value, created, revision, version, change.lease
                )
                new_changes.append(KeyChange(change.key, change.value, revision))
            else:
                new_changes += self.remove(
                    [key for key in self.entries if key == change.key]
                    if not change.prefix
                    else [key for key in self.entries if key.startswith(change.key)],
                    revision,
                )
        self.note(new_changes)

    def remove(self, gone: list[str], revision: Revision) -> list[KeyChange]:
        for key in gone:
            del self.entries[key]
        return [KeyChange(key, None, revision) for key in sorted(gone, key=str.encode)]

    def end(self, lease: LeaseId) -> None:
        self.leases.pop(lease, None)
        gone = [key for key, entry in self.entries.items() if entry.lease == lease]
        self.note(self.remove(gone, Revision(self.revision + 1)))

    def note(self, new_changes: list[KeyChange]) -> None:
        if new_changes:
            self.revision = new_changes[0].revision
            self.changes += new_changes

    @property
    def kept(self) -> tuple[list[KeyChange], Revision]:
        """The changes still kept, and the newest revision that is not."""
        kept = self.changes[-HISTORY.changes_max :]
        forgotten = Revision(0)
        if len(kept) < len(self.changes):
            forgotten = self.changes[-HISTORY.changes_max - 1].revision
        return [change for change in kept if change.revision > forgotten], forgotten


class StoreAgainstModel(RuleBasedStateMachine):
    """Requests, restarts and time, to the store and to the model alike."""

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        # In memory where there is such a place: thousands of syncs prove nothing here.
        self.directory = TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.clock = StillClock()
        self.model = Model()
        self.store = self.opened()

    def opened(self) -> SqliteMetadata:
        path = Path(self.directory.name)
        return self.runner.run(SqliteMetadata.open(path, clock=self.clock, history=HISTORY))

    def teardown(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()
        self.directory.cleanup()

    def lease(self, number: int) -> LeaseId | None:
        """One of the leases, a lease that never was, or none."""
        choices = [None, LeaseId(999), *self.model.leases]
        return choices[number % len(choices)]

    def before_a_write(self) -> None:
        """Every group begins with the leases that are due."""
        for lease, held in list(self.model.leases.items()):
            if held.ends_ns <= self.clock.ns:
                self.model.end(lease)

    @rule(key=keys, value=values, number=st.integers(0, 5))
    def put(self, key: str, value: bytes, number: int) -> None:
        lease = self.lease(number)
        self.before_a_write()
        if lease is None or lease in self.model.leases:
            revision = self.runner.run(self.store.put(key, value, lease))
            self.model.make([Put(key, value, lease)])
            assert revision == self.model.revision
        else:
            with pytest.raises(LeaseExpired):
                self.runner.run(self.store.put(key, value, lease))

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.before_a_write()
        existed = key in self.model.entries
        assert self.runner.run(self.store.delete(key)) == existed
        self.model.make([DeleteKeys(key)])

    @rule(data=st.data())
    def transact(self, data: st.DataObject) -> None:
        self.before_a_write()
        compares = [self.comparison(data) for _ in range(data.draw(st.integers(0, 2)))]
        puts = data.draw(st.dictionaries(keys, values, max_size=3))
        deletes = data.draw(st.sets(st.tuples(keys, st.booleans()), max_size=2))
        changes: list[Put | DeleteKeys] = [Put(key, value) for key, value in puts.items()]
        for key, prefix in sorted(deletes):
            touched = [put for put in puts if put == key or (prefix and put.startswith(key))]
            if not touched:
                changes.append(DeleteKeys(key, prefix))
        outcome = self.runner.run(self.store.transaction(compares, changes))
        if all(map(self.model.holds, compares)):
            self.model.make(changes)
            assert outcome == TransactionResult(True, self.model.revision)
        else:
            assert outcome == TransactionResult(False, self.model.revision)

    def comparison(self, data: st.DataObject) -> Compare:
        key, target = data.draw(keys), data.draw(st.sampled_from(CompareTarget))
        entry = self.model.entries.get(key)
        if target is CompareTarget.VALUE:
            return Compare(key, target, entry.value if entry else data.draw(values))
        true = getattr(entry, target.value) if entry else 0
        return Compare(
            key, target, true if data.draw(st.booleans()) else data.draw(st.integers(0, 9))
        )

    @rule(seconds=st.integers(1, 20))
    def grant(self, seconds: int) -> None:
        self.before_a_write()
        lease = self.runner.run(self.store.grant(seconds))
        assert lease not in self.model.leases
        self.model.leases[lease] = Held(seconds, self.clock.ns + seconds * 1_000_000_000)

    @rule(number=st.integers(1, 5))
    def keep_alive(self, number: int) -> None:
        lease = self.lease(number) or LeaseId(999)
        self.before_a_write()
        held = self.model.leases.get(lease)
        if held is None:
            with pytest.raises(LeaseExpired):
                self.runner.run(keep_alive(self.store, lease))
            return
        assert self.runner.run(keep_alive(self.store, lease)) == held.seconds
        ends_ns = self.clock.ns + held.seconds * 1_000_000_000
        self.model.leases[lease] = Held(held.seconds, ends_ns)

    @rule(number=st.integers(1, 5))
    def revoke(self, number: int) -> None:
        lease = self.lease(number) or LeaseId(999)
        self.before_a_write()
        self.runner.run(self.store.revoke(lease))
        self.model.end(lease)

    @rule(seconds=st.sampled_from([0.5, 3.0, 15.0]))
    def wait(self, seconds: float) -> None:
        self.clock.pass_seconds(seconds)
        self.before_a_write()
        self.runner.run(self.store.transaction([], []))

    @rule()
    def restart(self) -> None:
        self.runner.run(self.store.close())
        for lease, held in self.model.leases.items():
            ends_ns = self.clock.ns + held.seconds * 1_000_000_000
            self.model.leases[lease] = Held(held.seconds, ends_ns)
        self.store = self.opened()

    @rule(since=st.integers(0, 40))
    def read_history(self, since: int) -> None:
        kept, forgotten = self.model.kept
        reading = self.store._read(read_changes, b"/", Revision(since), 1000)
        if since < forgotten:
            with pytest.raises(HistoryCompacted) as caught:
                self.runner.run(reading)
            assert caught.value.oldest == forgotten + 1
        else:
            expected = [change for change in kept if change.revision > since]
            assert self.runner.run(reading).changes == expected

    @invariant()
    def the_same_is_stored(self) -> None:
        page = self.runner.run(self.store.range(""))
        expected = [self.model.entries[key] for key in sorted(self.model.entries, key=str.encode)]
        assert (page.entries, page.revision, page.more) == (expected, self.model.revision, False)


@pytest.mark.feature("T25")
def test_any_sequence_of_requests_restarts_and_time_leaves_store_and_model_the_same() -> None:
    run_state_machine_as_test(
        StoreAgainstModel, settings=settings(max_examples=60, stateful_step_count=40)
    )


async def test_a_lease_ends_by_itself_when_its_time_is_over(tmp_path: Path) -> None:
    store = await SqliteMetadata.open(tmp_path)
    await store.put("/a", b"", await store.grant(1))

    async def gone() -> bool:
        return await store.get("/a") is None

    await eventually(gone)
    await store.close()


async def test_a_lease_of_before_a_restart_ends_by_itself_too(tmp_path: Path) -> None:
    store = await SqliteMetadata.open(tmp_path)
    await store.put("/a", b"", await store.grant(1))
    await store.close()
    store = await SqliteMetadata.open(tmp_path)

    async def gone() -> bool:
        return await store.get("/a") is None

    await eventually(gone)
    await store.close()


async def test_a_missing_directory_is_created_for_its_owner_alone(tmp_path: Path) -> None:
    store = await SqliteMetadata.open(tmp_path / "deep" / "meta")
    assert (tmp_path / "deep" / "meta").stat().st_mode & 0o777 == 0o700
    await store.close()


async def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    store = await SqliteMetadata.open(tmp_path)
    await store.close()
    await store.close()
    with pytest.raises(MetadataUnavailable):
        await store.get("/a")


async def test_a_failed_open_leaves_no_thread_behind(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"no database" * 1000)
    before = _threads()
    with suppress(Exception):
        await SqliteMetadata.open(tmp_path)
    assert _threads() == before


def _threads() -> list[str]:
    import threading

    return sorted(thread.name for thread in threading.enumerate())


def test_the_embedded_store_starts_without_grpc() -> None:
    program = (
        "import sys, penstock.metadata.sqlite.metadata, penstock.metadata.ownership.ownership, "
        "penstock.metadata.progress; print('grpc' in sys.modules, 'google.protobuf' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False False\n", done.stderr
