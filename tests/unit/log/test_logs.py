import asyncio
from pathlib import Path

import pytest

from penstock.formats.paths import topic_directory
from penstock.log.append.writer import Writer
from penstock.log.logs import Logs, SharedLimits
from penstock.log.recovery.reopen import LogMode
from penstock.log.settings import LogSettings
from penstock.log.state import LogState, Missing
from penstock.model.errors import LogClosed, LogError
from penstock.model.names import TopicName
from penstock.model.resources import Durability
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId
from tests.unit.log.conftest import TOPIC, OpenLogs
from tests.unit.log.disks import Faulty, Hand
from tests.unit.log.messages import P0, eventually, payloads_from

LOUD = TopicName("default", "default", "Orders")


def flip(path: Path, position: int) -> bytes:
    """Flip a bit of a file; what is in it now."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return bytes(data)


async def test_logs_are_found_again_by_their_names(logs: OpenLogs) -> None:
    opened = await logs()
    topics = [LOUD, TOPIC, TopicName("t", "n", "ünïcode#1"), TopicName("t", "n", "x" * 255)]
    for topic in topics:
        log = await opened.create(topic)
        await log.append(Run(b"s", [str(topic).encode()]))
    opened = await logs()
    assert sorted(log.topic for log in opened) == sorted(map(str, topics))
    for topic in topics:
        found = opened.get(topic)
        assert found is not None
        assert await payloads_from(found) == {0: str(topic).encode()}
    assert opened.get(TopicName("t", "n", "unknown")) is None
    assert opened.ready() == (True, {"logs": 4, "troubled": {}})


async def two_logs(logs: OpenLogs) -> Logs:
    """Logs of two topics on disk, neither of them loaded."""
    opened = await logs()
    for topic in (TOPIC, LOUD):
        await (await opened.create(topic)).append(Run(b"s", [b"a", b"b"]))
    return await logs.started()


async def test_a_start_loads_no_log_and_a_load_only_its_own(logs: OpenLogs) -> None:
    started = await two_logs(logs)
    assert list(started) == []
    assert started.get(TOPIC) is None
    assert started.exists(TOPIC)
    found = await started.load(TOPIC)
    assert found is not None
    assert found is started.get(TOPIC) is await started.load(TOPIC)
    assert await payloads_from(found) == {0: b"a", 1: b"b"}
    assert list(started) == [found]
    assert started.log_directories() == {topic_directory(TOPIC), topic_directory(LOUD)}


async def test_a_log_that_is_loaded_twice_at_once_is_recovered_once(logs: OpenLogs) -> None:
    started = await two_logs(logs)
    first, second = await asyncio.gather(started.load(TOPIC), started.load(TOPIC))
    assert first is second is not None


async def test_a_load_continues_when_its_caller_is_cancelled(logs: OpenLogs) -> None:
    started = await two_logs(logs)
    loading = asyncio.create_task(started.load(TOPIC))
    await asyncio.sleep(0)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    found = await started.load(TOPIC)
    assert found is not None
    assert (await found.append(Run(b"s", [b"c"]))).first == 2


async def test_a_log_on_disk_is_neither_created_again_nor_found_once_removed(
    logs: OpenLogs,
) -> None:
    started = await two_logs(logs)
    with pytest.raises(LogError, match="the log exists already"):
        await started.create(TOPIC)
    await started.remove(TOPIC)
    assert not started.exists(TOPIC)
    assert await started.load(TOPIC) is None
    await started.create(TOPIC)


async def test_a_directory_whose_log_names_another_topic_is_not_served(logs: OpenLogs) -> None:
    opened = await logs()
    await opened.create(TOPIC)
    await logs.close()
    logs.topic_directory.rename(logs.topic_directory.with_name("moved"))
    started = await logs.started()
    moved = TopicName("default", "default", "moved")
    assert await started.load(moved) is None
    assert "has another directory" in started.unavailable["default/default/moved"]
    with pytest.raises(LogError, match="not available"):
        await started.create(moved)


async def test_logs_that_are_being_loaded_are_closed_with_the_others(logs: OpenLogs) -> None:
    started = await two_logs(logs)
    loading = asyncio.create_task(started.load(TOPIC))
    await asyncio.sleep(0)
    await logs.close()
    found = await loading
    assert found is not None
    assert found.closed


async def test_a_topic_has_one_log(logs: OpenLogs) -> None:
    opened = await logs()
    created = await asyncio.gather(
        *(opened.create(TOPIC) for _ in range(3)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in created) == ["Log", "LogError", "LogError"]
    with pytest.raises(LogError, match="the log exists already"):
        await opened.create(TOPIC, Durability.MEMORY)


async def test_a_log_that_cannot_be_recovered_does_not_keep_the_others_from_serving(
    logs: OpenLogs,
) -> None:
    opened = await logs()
    for topic in (TOPIC, LOUD):
        await (await opened.create(topic)).append(Run(b"s", [b"x"]))
    await logs.close()
    (path,) = (logs.directory / "default/default/%4frders").glob("*.log")
    path.write_bytes(path.read_bytes()[:100])
    opened = await logs()
    assert [log.topic for log in opened] == ["default/default/t"]
    assert list(opened.unavailable) == ["default/default/%4frders"]
    assert path.name in opened.unavailable["default/default/%4frders"]
    ready, facts = opened.ready()
    assert (ready, facts["troubled"]) == (False, opened.unavailable)


@pytest.mark.parametrize("topic", [TOPIC, LOUD])
async def test_a_log_that_cannot_be_recovered_is_never_written_over(
    logs: OpenLogs, topic: TopicName
) -> None:
    opened = await logs()
    await (await opened.create(topic)).append(Run(b"s", [b"precious"]))
    await logs.close()
    (path,) = logs.directory.rglob("*.log")
    original = flip(path, 70)
    opened = await logs()
    assert len(opened.unavailable) == 1
    with pytest.raises(LogError):
        await opened.create(topic)
    assert path.read_bytes() == original


async def test_existing_files_are_never_overwritten(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run(b"s", [b"precious"]))
    (path,) = logs.wal_files()
    opened = await logs()
    del opened._logs[TOPIC]
    await log.close()
    before = path.read_bytes()
    with pytest.raises(LogError):
        await opened.create(TOPIC)
    assert path.read_bytes() == before


@pytest.mark.feature("T04")
async def test_offsets_continue_without_a_gap_after_a_restart(logs: OpenLogs) -> None:
    expected: dict[int, bytes] = {}
    for start in range(0, 50, 10):
        log = await logs.log()
        assert log.next_offset(P0) == start
        for n in range(start, start + 10):
            assert await log.append(Run(b"s", [b"%d" % n])) == (n, n + 1)
            expected[n] = b"%d" % n
        assert await payloads_from(log) == expected
        assert log.status().missing == ()


@pytest.mark.feature("T04")
async def test_a_torn_tail_is_cut_and_the_offsets_go_on_without_a_hole(logs: OpenLogs) -> None:
    log = await logs.log(settings=LogSettings(idle_seconds=600))
    for n in range(5):
        await log.append(Run(b"s", [b"payload-%d" % n * 10]))
    for cut in range(1, 150, 7):
        copy = logs.crash()
        (path,) = copy.wal_files()
        path.write_bytes(path.read_bytes()[:-cut])
        seen = await copy.log()
        left = seen.next_offset(P0)
        assert left in (3, 4)
        assert list(await payloads_from(seen)) == list(range(left))
        assert await seen.append(Run(b"s", [b"new"])) == (left, left + 1)
        assert (await payloads_from(await copy.log()))[left] == b"new"
        await copy.close()


@pytest.mark.feature("T04")
async def test_the_hole_of_a_doubtful_last_group_is_recorded_and_survives_restarts(
    logs: OpenLogs,
) -> None:
    log = await logs.log(settings=LogSettings(idle_seconds=600))
    await log.append(Run(b"s", [b"0", b"1"]))
    await log.append(Run(b"s", [b"doubtful-2", b"doubtful-3"]))
    copy = logs.crash()
    (path,) = copy.wal_files()
    flip(path, path.read_bytes().index(b"doubtful-3"))
    seen = await copy.log()
    assert await seen.append(Run(b"s", [b"4"])) == (4, 5)
    for again in (seen, await copy.log()):
        assert again.next_offset(P0) == 5
    seen = await copy.log()
    assert await payloads_from(seen) == {0: b"0", 1: b"1", 4: b"4"}
    assert seen.live_count(P0) == 3
    (aside,) = copy.topic_directory.glob("*.broken")
    assert b"doubtful-2" in aside.read_bytes()


@pytest.mark.feature("T04")
async def test_the_status_has_the_findings_of_recovery(logs: OpenLogs) -> None:
    log = await logs.log()
    for n in range(3):
        await log.append(Run(b"s", [b"payload-%d" % n]))
    await logs.close()
    (path,) = logs.wal_files()
    flip(path, path.read_bytes().index(b"payload-1"))
    log = await logs.log()
    assert log.status().missing == (Missing(P0, Offset(1), Offset(2)),)
    assert log.mode is LogMode.OPEN


@pytest.mark.feature("T04", "T05")
@pytest.mark.parametrize("byte", [0, 5, 12, 20, 44, 61])
async def test_a_last_group_without_a_header_has_its_offsets_for_good(
    logs: OpenLogs, byte: int
) -> None:
    log = await logs.log(settings=LogSettings(idle_seconds=600))
    await log.append(Run(b"s", [b"uno"], partition=PartitionId(1)))
    await log.append(Run(b"s", [b"0", b"1"]))
    (path,) = logs.wal_files()
    end = path.stat().st_size
    await log.append(Run(b"s", [b"acknowledged-2", b"acknowledged-3"]))
    copy = logs.crash()
    (path,) = copy.wal_files()
    damaged = flip(path, end + byte)
    seen = await copy.log()
    doubtful = 8 * (len(damaged) - end)
    assert await seen.append(Run(b"s", [b"new"])) == (2 + doubtful, 3 + doubtful)
    assert await seen.append(Run(b"s", [b"dos"], partition=PartitionId(1))) == (
        1 + doubtful,
        2 + doubtful,
    )
    assert await seen.append(Run(b"s", [b"un"], partition=PartitionId(2))) == (
        doubtful,
        doubtful + 1,
    )
    stored = {0: b"0", 1: b"1", 2 + doubtful: b"new"}
    assert await payloads_from(seen) == stored
    for place in (copy.crash(), copy):
        again = await place.log()
        assert await payloads_from(again) == stored
        assert await payloads_from(again, doubtful, partition=2) == {doubtful: b"un"}
        assert (again.live_count(P0), again.status().missing) == (3, ())
    (aside,) = copy.topic_directory.glob("*.broken")
    assert aside.read_bytes() == damaged[end:]
    assert path.read_bytes() == damaged[:end]


@pytest.mark.feature("T04")
async def test_unfinished_files_of_an_earlier_process_are_removed(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run(b"s", [b"0"]))
    await logs.close()
    left = [logs.topic_directory / f"{path.name}.tmp" for path in logs.wal_files()]
    left.append(logs.topic_directory / "wal-0000000001-0000000000000003.log.tmp")
    for path in left:
        path.write_bytes(b"half a file")
    log = await logs.log()
    assert await payloads_from(log) == {0: b"0"}
    assert not any(path.exists() for path in left)


async def test_a_memory_log_leaves_nothing_on_disk(logs: OpenLogs) -> None:
    opened = await logs()
    log = await opened.create(TOPIC, Durability.MEMORY)
    await log.append(Run(b"s", [b"x"]))
    await logs.close()
    assert not list(logs.directory.rglob("*.log"))
    assert (await logs()).get(TOPIC) is None


async def test_the_durability_of_a_log_is_kept_with_it(logs: OpenLogs) -> None:
    opened = await logs()
    created = await opened.create(TOPIC)
    assert created.durability is Durability.FSYNC
    found = (await logs()).get(TOPIC)
    assert found is not None
    assert found.durability is Durability.FSYNC


async def test_a_log_continues_an_adopted_state(logs: OpenLogs) -> None:
    opened = await logs()
    state = LogState(str(TOPIC))
    state.nexts = {0: 100, 1: 7}
    log = await opened.adopt(TOPIC, state, 50)
    assert await log.append(Run(b"s", [b"x"])) == (100, 101)
    log = await logs.log()
    assert (log.next_offset(P0), log.next_offset(PartitionId(1))) == (101, 7)
    assert logs.wal_files()[0].name == "wal-0000000000-0000000000000050.log"


async def test_new_directories_survive_a_power_cut(logs: OpenLogs) -> None:
    """The parent of each new directory must be synced, since it has its entry."""
    disk = Faulty()
    opened = await logs(disk)
    await opened.create(TopicName("tenant", "space", "topic"))
    synced = {name for operation, name in disk.calls if operation == "sync_directory"}
    assert {"topic", "space", "tenant", logs.directory.name} <= synced
    assert logs.directory.parent.name in synced


@pytest.mark.feature("T06", "T08")
async def test_the_tick_rotates_old_files_and_empties_the_cache(
    logs: OpenLogs,
) -> None:
    clock = Hand()
    limits = SharedLimits(cache_seconds_max=30, reserve_bytes=4096)
    settings = LogSettings(file_seconds_max=60, tick_seconds=0.01)
    opened = await logs(clock=clock, limits=limits, settings=settings)
    log = await opened.create(TOPIC)
    await log.append(Run(b"s", [b"x"]))
    assert opened.cache.size_bytes > 0
    clock.pass_seconds(31)
    await eventually(lambda: opened.cache.size_bytes == 0)
    assert len(logs.wal_files()) == 1
    clock.pass_seconds(30)
    await eventually(lambda: len(logs.wal_files()) == 2)
    assert await payloads_from(log) == {0: b"x"}


@pytest.mark.feature("T08")
async def test_one_bound_holds_for_the_caches_of_all_logs(logs: OpenLogs) -> None:
    limits = SharedLimits(cache_bytes_max=20_000, reserve_bytes=4096)
    opened = await logs(limits=limits)
    topics = [await opened.create(TopicName("t", "n", str(n))) for n in range(5)]
    for n in range(40):
        await topics[n % 5].append(Run(b"s", [b"x" * 1000]))
        assert opened.cache.size_bytes <= 20_000
    hits = opened.cache.hits
    await topics[39 % 5].read(P0, Offset(7))
    assert opened.cache.hits == hits + 1
    misses = opened.cache.misses
    await topics[0].read(P0, Offset(0))
    assert opened.cache.misses == misses + 1


async def test_the_reserve_is_held_from_the_start(logs: OpenLogs) -> None:
    await logs(limits=SharedLimits(reserve_bytes=1 << 16))
    assert (logs.directory / "reserve").stat().st_size == 1 << 16


async def test_many_logs_sync_together(logs: OpenLogs) -> None:
    disk = Faulty()
    opened = await logs(disk)
    topics = [await opened.create(TopicName("t", "n", str(n))) for n in range(100)]
    before = disk.count("sync") + disk.count("sync_filesystem")
    await asyncio.gather(*(log.append(Run(b"s", [b"x"])) for log in topics))
    used = disk.count("sync") + disk.count("sync_filesystem") - before
    assert used <= 60
    for log in topics:
        assert log.next_offset(P0) == 1


async def test_closing_twice_is_no_error(logs: OpenLogs) -> None:
    opened = await logs()
    await opened.create(TOPIC)
    await logs.close()
    for log in opened:
        await log.close()


async def test_a_removed_log_leaves_nothing_and_its_name_is_free(logs: OpenLogs) -> None:
    opened = await logs()
    for topic in (TOPIC, LOUD):
        await (await opened.create(topic)).append(Run(b"s", [b"old"]))
    aside = logs.topic_directory.with_name("t.overtaken-1")
    aside.mkdir()
    (aside / "wal").write_bytes(b"x")
    log = opened.get(TOPIC)
    assert log is not None
    with log.waiters.arrival(P0) as arrival:
        await opened.remove(TOPIC)
        assert arrival.done()
    await opened.remove(TOPIC)
    with pytest.raises(LogClosed):
        log.append(Run(b"s", [b"late"]))
    assert [path.name for path in logs.topic_directory.parent.iterdir()] == ["%4frders"]
    again = await opened.create(TOPIC)
    assert await payloads_from(again) == {}
    assert (await again.append(Run(b"s", [b"new"]))).first == 0
    opened = await logs()
    assert sorted(log.topic for log in opened) == sorted(map(str, (TOPIC, LOUD)))


async def test_a_log_that_cannot_be_recovered_can_be_removed(logs: OpenLogs) -> None:
    await (await (await logs()).create(TOPIC)).append(Run(b"s", [b"x"]))
    await logs.close()
    (path,) = logs.wal_files()
    path.write_bytes(b"?" * 100)
    opened = await logs()
    assert opened.unavailable
    await opened.remove(TOPIC)
    assert opened.ready() == (True, {"logs": 0, "troubled": {}})
    await opened.create(TOPIC)


async def test_half_a_removed_log_is_not_taken_for_a_log(logs: OpenLogs) -> None:
    disk = Faulty()
    opened = await logs(disk)
    await (await opened.create(TOPIC)).append(Run(b"s", [b"x"]))
    disk.fail = lambda call, name: OSError(5, "broken") if call == "remove" else None
    with pytest.raises(OSError, match="broken"):
        await opened.remove(TOPIC)
    opened = await logs()
    assert (list(opened), opened.unavailable) == ([], {})
    await opened.remove(TOPIC)
    assert list(logs.topic_directory.parent.iterdir()) == []


async def test_appends_that_wait_for_their_upload_fail_when_the_log_is_removed(
    logs: OpenLogs,
) -> None:
    opened = await logs()
    log = await opened.create(TOPIC, Durability.CLOUD)
    assert isinstance(log.writer, Writer)
    log.writer.hold_for_upload()
    waiting = [log.append(Run(b"s", [b"x"])) for _ in range(2)]
    await opened.remove(TOPIC)
    for future in waiting:
        with pytest.raises(LogClosed):
            await future
