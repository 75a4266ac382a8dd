"""The duplicate window, in memory and after a restart.

It survives a crash, also if messages were deleted, uploaded or pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.model.errors import ReadFailed
from penstock.model.units import Offset, PartitionId
from penstock.streams import message_ids
from penstock.streams.message_ids import FILE_NAME, DuplicateWindow, MessageIds
from penstock.streams.stream import Stream
from tests.broker.storage import World
from tests.broker.streams import Streaming, block, start_again


class Time:
    now = 1000

    def __call__(self) -> int:
        return self.now


def test_an_id_is_remembered_for_the_window() -> None:
    time = Time()
    ids = DuplicateWindow(100, time)
    ids.add(b"a", 1)
    time.now = 1060
    ids.add(b"b", 2)
    assert (ids.find(b"a"), ids.find(b"b"), ids.find(b"c")) == (1, 2, None)
    time.now = 1100
    assert ids.find(b"a") == 1
    time.now = 1101
    assert (ids.find(b"a"), ids.find(b"b")) == (None, 2)


def test_without_a_window_no_id_is_remembered() -> None:
    ids = DuplicateWindow(0, Time())
    ids.add(b"a", 1)
    assert ids.find(b"a") is None
    assert ids.last_id(1) == b"a"


def test_an_older_id_is_forgotten_earlier() -> None:
    time = Time()
    ids = DuplicateWindow(100, time)
    ids.add(b"old", 1, 800)
    ids.add(b"recent", 2, 950)
    assert (ids.find(b"old"), ids.find(b"recent")) == (None, 2)
    time.now = 1051
    assert ids.find(b"recent") is None


def test_a_shorter_window_forgets_ids_sooner() -> None:
    time = Time()
    ids = DuplicateWindow(100, time)
    ids.add(b"a", 1)
    time.now = 1050
    assert ids.find(b"a") == 1
    ids.window_us = 10
    assert ids.find(b"a") is None


def test_a_forgotten_id_may_be_published_again() -> None:
    ids = DuplicateWindow(100, Time())
    ids.add(b"a", 1)
    ids.forget(b"a")
    ids.forget(b"never")
    assert ids.find(b"a") is None
    ids.add(b"a", 2)
    assert ids.find(b"a") == 2


def test_the_last_id_is_that_of_the_last_message() -> None:
    ids = DuplicateWindow(100, Time())
    assert ids.last_id(0) == b""
    ids.add(b"a", 7)
    assert ids.last_id(7) == b"a"
    assert ids.last_id(8) == b""


def test_the_number_of_ids_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "IDS_MAX", 3)
    ids = DuplicateWindow(100, Time())
    for number in range(5):
        ids.add(b"%d" % number, number)
    assert [ids.find(b"%d" % number) for number in range(5)] == [None, None, 2, 3, 4]


def test_the_entries_are_the_ids_within_the_window_in_their_order() -> None:
    time = Time()
    ids = DuplicateWindow(100, time)
    ids.add(b"a", 1)
    time.now = 1060
    ids.add(b"b", 2)
    ids.add(b"c", 3)
    ids.forget(b"c")
    assert list(ids.entries()) == [(b"a", 1, 1000), (b"b", 2, 1060)]
    time.now = 1101
    assert list(ids.entries()) == [(b"b", 2, 1060)]


COUNT = 12


def named(number: int) -> bytes:
    return block(f"Nats-Msg-Id: id-{number}")


async def filled(made: Streaming, *, rotating: bool = False, **config: Any) -> Stream:
    """A stream of `COUNT` messages with ids, each in a WAL file of its own if `rotating`."""
    stream = await made.create("s", subjects=["a.>"], **config)
    for number in range(COUNT):
        answer = await made.publish(f"a.{number % 3}", b"x", named(number))
        assert answer == {"stream": "s", "seq": number + 1}
        if rotating:
            stream.opened.log.rotate()
            await stream.opened.log.writer.flush()
    return stream


async def all_known(made: Streaming) -> None:
    """Every id is a duplicate, under the sequence it was stored with."""
    for number in range(COUNT):
        answer = await made.publish("a.0", b"x", named(number))
        assert answer == {"stream": "s", "seq": number + 1, "duplicate": True}


async def _delete(stream: Stream) -> None:
    await stream.delete([0, 5, COUNT - 1])


async def _purge(stream: Stream) -> None:
    await stream.purge(COUNT)


async def _purge_past_end(stream: Stream) -> None:
    await stream.purge(1 << 40, past_end=True)


@pytest.mark.feature("P03")
@pytest.mark.parametrize("remove", [_delete, _purge, _purge_past_end])
@pytest.mark.parametrize("rotating", [False, True])
async def test_ids_of_deleted_messages_are_known_after_a_crash(
    made: Streaming, remove: Callable[[Stream], Coroutine[Any, Any, None]], rotating: bool
) -> None:
    stream = await filled(made, rotating=rotating)
    files = len(stream.opened.log.files.all())
    await remove(stream)
    assert (len(stream.opened.log.files.all()) < files) == (rotating and remove is not _delete)
    for _ in range(2):
        made, stream = await start_again(made, "s")
        await all_known(made)
    made.close()


@pytest.mark.parametrize(
    "config", [{"max_msgs_per_subject": 1}, {"max_msgs": 2}, {"retention": "interest"}]
)
@pytest.mark.parametrize("rotating", [False, True])
async def test_ids_of_messages_that_limits_removed_are_known_after_a_crash(
    made: Streaming, config: dict[str, Any], rotating: bool
) -> None:
    await filled(made, rotating=rotating, **config)
    made, _ = await start_again(made, "s")
    await all_known(made)
    made.close()


async def test_ids_are_known_after_their_messages_were_uploaded_and_their_files_dropped(
    made: Streaming,
) -> None:
    stream = await filled(made, rotating=True)
    await stream.delete([2, 3])
    await made.served.broker.tiers.flush(stream.topic.name)
    await stream.opened.log.index.settled()
    await stream.opened.log.prune(stream.opened.log.files.all()[:-1])
    assert len(stream.opened.log.files.all()) == 1
    made, stream = await start_again(made, "s")
    await all_known(made)
    made.close()


async def test_without_a_side_file_ids_are_read_from_objects(made: Streaming) -> None:
    stream = await filled(made, rotating=True)
    await made.served.broker.tiers.flush(stream.topic.name)
    await stream.opened.log.index.settled()
    await stream.opened.log.prune(stream.opened.log.files.all()[:-1])
    (stream.opened.log.directory / FILE_NAME).unlink()
    made, stream = await start_again(made, "s")
    await all_known(made)
    made.close()


async def test_files_dropped_before_the_window_is_restored_lose_no_id(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_ids, "SLICE", 2)
    stream = await filled(made, rotating=True)
    await stream.purge(4)
    made, stream = await start_again(made, "s")
    await stream.purge(COUNT)
    made, stream = await start_again(made, "s")
    await all_known(made)
    made.close()


async def test_ids_older_than_the_window_are_not_saved(made: Streaming, world: World) -> None:
    stream = await filled(made, rotating=True, duplicate_window=1_000_000_000)
    world.clock.us += 5_000_000
    await stream.purge(COUNT)
    assert await stream.opened.log.side_files.read(FILE_NAME) is None


async def test_a_message_that_is_not_durable_leaves_no_id_behind(made: Streaming) -> None:
    stream = await filled(made)
    served = made.streams._served["s"]
    served.window.add(b"pending", COUNT + 1)
    await MessageIds(stream, served.window, made.served.host.clock).save({0: 1 << 40})
    data = await stream.opened.log.side_files.read(FILE_NAME)
    assert data is not None
    assert b"id-11" in data
    assert b"pending" not in data


async def test_a_failed_write_of_ids_does_not_stop_a_purge(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await filled(made, rotating=True)

    async def failing(name: str, data: bytes) -> None:
        raise OSError("full")

    monkeypatch.setattr(stream.opened.log.side_files, "write", failing)
    with capture_logs() as logs:
        await stream.purge(COUNT)
    assert len(stream.opened.log.files.all()) == 1
    assert "wal_drop_not_prepared" in [log["event"] for log in logs]


async def test_unreadable_ids_are_logged_and_delay_no_publish(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(made)

    async def fail(self: Stream, time_us: int) -> Offset:
        raise ReadFailed("s", PartitionId(0), Offset(0), "the disk is broken")

    monkeypatch.setattr(Stream, "offset_at", fail)
    with capture_logs() as logs:
        made, _ = await start_again(made, "s")
        answer = await made.publish("a.0", b"x", named(0))
    assert answer == {"stream": "s", "seq": COUNT + 1}
    assert "message_ids_unknown" in [log["event"] for log in logs]
    made.close()
