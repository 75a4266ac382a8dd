"""etcd that crashes, hangs, loses members, forgets, and asks who we are."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from penstock.metadata import (
    Compare,
    CompareTarget,
    HistoryCompacted,
    KeyChange,
    LeaseId,
    Metadata,
    MetadataEntry,
    MetadataRefused,
    MetadataUnavailable,
    Put,
    Revision,
)
from penstock.metadata.etcd import EtcdMetadata, EtcdSettings
from tests.conformance.metadata.watching import watch, watched
from tests.eventually import eventually
from tests.faults import keep_alive
from tests.servers.certificates import make_certificates
from tests.servers.etcd import EtcdCluster, EtcdServer

pytestmark = [pytest.mark.feature("T25"), pytest.mark.asyncio(loop_scope="session")]

PATIENT_SECONDS = 30.0
HASTY_SECONDS = 0.5
SECRET = "canary-secret"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path)
    cluster.start()
    yield cluster
    cluster.close()


@asynccontextmanager
async def connected(*endpoints: str, seconds: float = PATIENT_SECONDS) -> AsyncIterator[Metadata]:
    store = EtcdMetadata(EtcdSettings(endpoints, seconds))
    try:
        yield store
    finally:
        await store.close()


class Load:
    """Writers that each put key after key, and what they were told."""

    def __init__(self, store: Metadata, writers: int) -> None:
        self.told: dict[str, Revision] = {}
        self.open: set[str] = set()
        self._store = store
        self._stop = False
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(writers)]

    async def stop(self) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def _write(self, writer: int) -> None:
        number = 0
        while not self._stop:
            key = f"/load/{writer}/{number:06d}"
            number += 1
            try:
                self.told[key] = await self._store.put(key, b"")
            except MetadataUnavailable:
                self.open.add(key)
                await asyncio.sleep(0.01)


async def test_a_crash_of_etcd_under_load_loses_nothing_that_was_answered(
    server: EtcdServer,
) -> None:
    async with connected(server.endpoint) as store, connected(server.endpoint) as watching:
        since = (await store.range("/")).revision
        lease = await store.grant(60)
        owned = await store.put("/owned", b"", lease)
        load = Load(store, 8)
        seen: list[KeyChange] = []

        async def follow() -> None:
            async with aclosing(watch(watching, "/", since)) as lists:
                async for changes in lists:
                    seen.extend(changes)
                    if changes[-1].key == "/last":
                        break

        follower = asyncio.create_task(follow())
        for _ in range(3):
            before = len(load.told)

            async def has_moved(before: int = before) -> bool:
                return len(load.told) > before + 100

            await eventually(has_moved)
            server.kill()
            await asyncio.to_thread(server.start)
        await load.stop()
        assert await keep_alive(store, lease) == 60
        last = await store.put("/last", b"")
        await follower

        entries: list[MetadataEntry] = []
        more = True
        while more:
            page = await store.range("/load/", after=entries[-1].key if entries else "")
            entries += page.entries
            more = page.more
        found = {entry.key: entry.mod_revision for entry in entries}
        assert load.told.items() <= found.items()
        assert found.keys() <= load.told.keys() | load.open
        expected = {**found, "/owned": owned, "/last": last}
        assert seen == sorted(
            (KeyChange(key, b"", revision) for key, revision in expected.items()),
            key=lambda change: change.revision,
        )


async def test_a_hanging_etcd_is_unavailable_until_it_continues(
    server: EtcdServer,
) -> None:
    async with connected(server.endpoint) as patient:
        await _settled(patient)
        lease = await patient.grant(600)
        await patient.put("/a", b"before")
    async with connected(server.endpoint, seconds=HASTY_SECONDS) as store:
        await _settled(store)
        server.pause()
        unchanged = Compare("/a", CompareTarget.VALUE, b"before")
        calls = [
            store.get("/a"),
            store.range("/"),
            store.put("/b", b""),
            store.delete("/c"),
            store.transaction([unchanged], [Put("/a", b"during")]),
            store.transaction([unchanged], []),
            store.grant(600),
            keep_alive(store, lease, HASTY_SECONDS),
            store.revoke(lease),
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {MetadataUnavailable}
        server.resume()

        async def goes_on() -> bool:
            try:
                entry = await store.get("/a")
            except MetadataUnavailable:
                return False
            assert entry is not None
            # Nobody was told what became of the transaction; either is right.
            assert entry.value in (b"before", b"during")
            return True

        await eventually(goes_on)


async def test_nothing_that_listens_is_unavailable(server: EtcdServer) -> None:
    server.kill()
    async with connected(server.endpoint, seconds=HASTY_SECONDS) as store:
        calls = [
            store.get("/a"),
            store.put("/a", b""),
            keep_alive(store, LeaseId(1), HASTY_SECONDS),
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [MetadataUnavailable] * 3


async def test_a_call_made_while_etcd_restarts_waits_for_it(server: EtcdServer) -> None:
    async with connected(server.endpoint) as store:
        at = await store.put("/a", b"")
        server.kill()
        reading = asyncio.create_task(store.get("/a"))
        await asyncio.to_thread(server.start)
        entry = await reading
        assert entry is not None
        assert entry.mod_revision == at


async def test_calls_go_to_a_member_that_answers(cluster: EtcdCluster) -> None:
    async with connected(*cluster.endpoints, seconds=3.0) as store:
        await _settled(store)
        since = (await store.range("/")).revision
        following = asyncio.create_task(watched(store, "/k/", since, 4))
        # Whichever is asked now, it is hit at some time; the other two are a majority.
        for number, member in enumerate(cluster.members):
            member.kill()
            await _settled(store)
            await _put_anew(store, f"/k/{number}")
            await asyncio.to_thread(member.start)
            await _settled(store)
        await _put_anew(store, "/k/3")
        changes = await following
        assert [change.key for change in changes] == [f"/k/{number}" for number in range(4)]


async def test_a_member_that_hangs_is_left_for_one_that_answers(cluster: EtcdCluster) -> None:
    async with connected(*cluster.endpoints, seconds=3.0) as store:
        await _settled(store)
        for member in cluster.members:
            member.pause()
            await _settled(store)
            await _put_anew(store, f"/{member.endpoint}")
            member.resume()


async def test_a_lease_is_renewed_by_a_member_that_answers(cluster: EtcdCluster) -> None:
    async with connected(*cluster.endpoints) as store:
        await _settled(store)
        lease = await store.grant(600)
        renewer = store.renewer()
        for member in cluster.members:
            member.pause()
            assert await asyncio.to_thread(renewer.keep_alive, lease, PATIENT_SECONDS) == 600
            member.resume()
        for member in cluster.members:
            member.kill()
            assert await asyncio.to_thread(renewer.keep_alive, lease, PATIENT_SECONDS) == 600
            await asyncio.to_thread(member.start)
            await _settled(store)
        renewer.close()
        with pytest.raises(MetadataUnavailable):
            renewer.keep_alive(lease, HASTY_SECONDS)


async def test_closing_a_renewer_ends_its_call(server: EtcdServer) -> None:
    async with connected(server.endpoint) as store:
        renewer = store.renewer()
        lease = await store.grant(600)
        assert await asyncio.to_thread(renewer.keep_alive, lease, PATIENT_SECONDS) == 600
        server.pause()
        call = asyncio.create_task(asyncio.to_thread(renewer.keep_alive, lease, 24 * 3600.0))
        await asyncio.sleep(0.1)
        renewer.close()
        with pytest.raises(MetadataUnavailable):
            await call
        server.resume()


async def test_a_watch_whose_last_change_is_the_last_kept_sees_the_next(
    server: EtcdServer,
) -> None:
    async with connected(server.endpoint) as store:
        await store.put("/a", b"1")
        since = await store.put("/a", b"2")
        await store.delete("/a")
        server.control("compaction", str(since))
        changes = await watched(store, "/a", since, 1)
        assert changes == [KeyChange("/a", None, Revision(since + 1))]


async def test_a_delete_at_the_very_revision_of_a_compaction_is_not_passed_over(
    server: EtcdServer,
) -> None:
    async with connected(server.endpoint) as store:
        since = await store.put("/a", b"1")
        await store.delete("/a")
        server.control("compaction", str(since + 1))
        with pytest.raises(HistoryCompacted, match=f"since revision {since} are gone"):
            await watched(store, "/a", since, 1)


async def test_users_are_let_in_by_password_and_again_after_a_restart(
    server: EtcdServer,
) -> None:
    for command in (
        f"user add root:{SECRET}",
        "role add writer",
        "role grant-permission writer readwrite --prefix=true /ours/",
        f"user add penstock:{SECRET}",
        "user grant-role penstock writer",
        "user grant-role root root",
        "auth enable",
    ):
        server.control(*command.split())
    settings = EtcdSettings((server.endpoint,), PATIENT_SECONDS, "penstock", SECRET)
    assert SECRET not in repr(settings)
    store = EtcdMetadata(settings)
    try:
        since = await store.put("/ours/a", b"1")
        lease, renewer = await store.grant(600), store.renewer()
        assert await asyncio.to_thread(renewer.keep_alive, lease, PATIENT_SECONDS) == 600
        with pytest.raises(MetadataRefused, match="permission denied"):
            await store.put("/theirs/a", b"")
        with pytest.raises(MetadataRefused, match="permission denied"):
            await watched(store, "/theirs/", since, 1)
        # etcd keeps tokens in memory only.
        server.kill()
        await asyncio.to_thread(server.start)
        second = await store.put("/ours/a", b"2")
        assert await asyncio.to_thread(renewer.keep_alive, lease, PATIENT_SECONDS) == 600
        renewer.close()
        assert await watched(store, "/ours/", since, 1) == [KeyChange("/ours/a", b"2", second)]
        following = asyncio.create_task(watched(store, "/ours/", since, 2))
        server.kill()
        await asyncio.to_thread(server.start)
        # Nothing else is asked, so it is the watch that has to log in.
        other = EtcdMetadata(settings)
        third = await other.put("/ours/a", b"3")
        await other.close()
        assert await following == [
            KeyChange("/ours/a", b"2", second),
            KeyChange("/ours/a", b"3", third),
        ]
    finally:
        await store.close()
    await _is_refused(EtcdSettings((server.endpoint,), PATIENT_SECONDS, "penstock", f"x{SECRET}"))
    await _is_refused(EtcdSettings((server.endpoint,), PATIENT_SECONDS))


async def test_the_way_to_etcd_can_be_encrypted_on_both_sides(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    options = [
        f"--cert-file={certificates.certificate}",
        f"--key-file={certificates.private_key}",
        f"--trusted-ca-file={certificates.authority}",
        "--client-cert-auth",
    ]
    server = EtcdServer(tmp_path, scheme="https", options=options)
    server.start()
    try:
        known = EtcdSettings(
            (server.endpoint,),
            PATIENT_SECONDS,
            ca_pem=certificates.authority.read_bytes(),
            certificate_pem=certificates.certificate.read_bytes(),
            private_key_pem=certificates.private_key.read_bytes(),
        )
        assert "PRIVATE" not in repr(known)
        store = EtcdMetadata(known)
        at = await store.put("/a", b"1")
        assert [entry.mod_revision for entry in (await store.range("/")).entries] == [at]
        assert await keep_alive(store, await store.grant(600)) == 600
        await store.close()
        stranger = EtcdMetadata(EtcdSettings((server.endpoint,), HASTY_SECONDS))
        with pytest.raises(MetadataUnavailable):
            await stranger.get("/a")
        await stranger.close()
    finally:
        server.close()


async def _is_refused(settings: EtcdSettings) -> None:
    store = EtcdMetadata(settings)
    with pytest.raises(MetadataRefused) as caught:
        await store.get("/ours/a")
    assert SECRET not in str(caught.value)
    await store.close()


async def _settled(store: Metadata) -> None:
    """The cluster has a leader and answers."""

    async def answers() -> bool:
        try:
            await store.get("/")
        except MetadataUnavailable:
            return False
        return True

    await eventually(answers)


async def _put_anew(store: Metadata, key: str) -> None:
    """Create a key, whatever becomes of single attempts."""

    async def there() -> bool:
        try:
            await store.transaction([Compare(key, CompareTarget.VERSION, 0)], [Put(key, b"")])
        except MetadataUnavailable:
            return False
        return True

    await eventually(there)
