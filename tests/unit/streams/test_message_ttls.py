"""The expiry table follows its stream, and a restart reads only what its checkpoint lacks."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from penstock.formats import expiry as form
from penstock.host.disk import Buffer
from penstock.model.run import Run
from penstock.streams import expiry, expiry_table, message_ttls
from penstock.streams.message_ttls import (
    FILE_NAME,
    MessageTtls,
)
from penstock.streams.shared_scan import ReadResult, SharedScan
from penstock.streams.stream import Stream
from tests.broker.storage import World
from tests.broker.streams import Streaming, block, start_again
from tests.broker.topics import memory, serve
from tests.eventually import eventually

TTL = {"subjects": ["s"], "allow_msg_ttl": True}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of all messages that are read for expiry tables."""
    read, found = SharedScan.read, list[int]()

    async def reading(scan: SharedScan, offset: int, bytes_max: int) -> ReadResult:
        caller = sys._getframe(1).f_globals["__name__"]
        result = await read(scan, offset, bytes_max)
        if isinstance(result, list) and caller == message_ttls.__name__:
            found.extend(int(offset) for batch in result for offset in batch.offsets())
        return result

    monkeypatch.setattr(SharedScan, "read", reading)
    return found


def ttls_of(made: Streaming, name: str = "s") -> MessageTtls:
    return made.streams._served[name].expiry._ttls


async def caught_up(made: Streaming, name: str = "s") -> MessageTtls:
    ttls, stream = ttls_of(made, name), made.streams.get(name)
    assert stream is not None

    async def look() -> bool:
        return ttls._opened and ttls._position >= stream.next_offset

    await eventually(look)
    return ttls


async def publish(stream: Stream, *ttls: str) -> None:
    """One message for each TTL, without one where it is empty."""
    blocks = [block(f"Nats-TTL: {ttl}") if ttl else b"" for ttl in ttls]
    await stream.opened.log.append(Run(b"s", [ttl.encode() for ttl in ttls], blocks))


async def payloads(stream: Stream) -> list[bytes]:
    return [text async for rows in stream.rows_from(0, 100) for text in rows.payloads]


async def becomes(made: Streaming, stream: Stream, *expected: bytes) -> None:
    """After a look at the clock, the stream has these messages."""
    watch = made.streams._served[stream.name].expiry

    async def so() -> bool:
        watch.start()
        return await payloads(stream) == list(expected)

    await eventually(so)


async def saved(made: Streaming, *ttls: str) -> Stream:
    """A stream with these messages and a checkpoint that has them all."""
    stream = await made.create("s", **TTL)
    await publish(stream, *ttls)
    await (await caught_up(made)).checkpoint()
    return stream


async def stop(made: Streaming) -> Path:
    """Stop the broker cleanly; returns its directory."""
    made.close()
    broker = made.served.broker
    await broker.stop()
    return broker.directory


async def start(world: World, directory: Path) -> tuple[Streaming, Stream]:
    made = Streaming(await serve(world, directory))
    stream = made.streams.get("s")
    assert stream is not None
    return made, stream


async def drop_wal(made: Streaming, stream: Stream) -> None:
    """Upload everything, and leave nothing of it in the WAL."""
    stream.opened.log.rotate()
    await stream.opened.log.writer.flush()
    await made.served.broker.tiers.flush(stream.topic.name)
    await stream.opened.log.index.settled()
    await stream.opened.log.prune(stream.opened.log.files.all()[:-1])
    stream.opened.log._tail.clear()


async def test_a_message_of_any_protocol_expires_without_a_restart(
    made: Streaming, world: World
) -> None:
    stream = await made.create("s", **TTL)
    await publish(stream, "5", "", "never", "soon", "1h")
    await caught_up(made)
    world.clock.pass_seconds(6)
    await becomes(made, stream, b"", b"never", b"soon", b"1h")


async def test_a_restart_reads_only_what_the_checkpoint_lacks(
    made: Streaming, world: World, reads: list[int]
) -> None:
    stream = await saved(made, *["10"] * 20)
    await publish(stream, "5", "20")
    await caught_up(made)
    del reads[:]
    made, stream = await start_again(made, "s")
    await caught_up(made)
    assert reads == [20, 21]
    world.clock.pass_seconds(11)
    await becomes(made, stream, b"20")
    made.close()


async def test_after_a_clean_stop_a_restart_reads_no_message(
    made: Streaming, world: World, reads: list[int]
) -> None:
    stream = await made.create("s", **TTL)
    await publish(stream, "10", "", "5")
    directory = await stop(made)
    del reads[:]
    made, stream = await start(world, directory)
    await caught_up(made)
    assert reads == []
    world.clock.pass_seconds(6)
    await becomes(made, stream, b"10", b"")
    made.close()


async def test_messages_that_expired_during_downtime_are_deleted_after_the_start(
    made: Streaming, world: World
) -> None:
    await saved(made, "10", "never", "50")
    directory = await made.served.crash()
    made.close()
    world.clock.pass_seconds(20)
    made, stream = await start(world, directory)
    await becomes(made, stream, b"never", b"50")
    made.close()


async def test_entries_in_memory_are_bounded_and_all_messages_expire(
    made: Streaming, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry_table, "RECENT_MAX", 20)
    monkeypatch.setattr(expiry_table, "SMALL_ENTRIES", 50)
    monkeypatch.setattr(expiry_table, "MERGED_ENTRIES", 400)
    monkeypatch.setattr(message_ttls, "READ_BYTES", 1)
    stream = await made.create("s", **TTL)
    in_memory: list[int] = []
    for first in range(0, 1000, 10):
        await publish(stream, *(f"{60 + (first + n) * 7 % 977}" for n in range(10)))
        in_memory.append((await caught_up(made)).entries_in_memory)
    assert max(in_memory) <= 30
    assert len(list(stream.opened.log.directory.glob("expiry-*"))) < 40
    made, stream = await start_again(made, "s")
    for _ in range(11):
        world.clock.pass_seconds(100)
        left = stream.messages
        made.streams._served["s"].expiry.start()
        await eventually(lambda before=left: _fewer(stream, before))  # type: ignore[misc]
    await becomes(made, stream)

    async def removed() -> bool:
        return not list(stream.opened.log.directory.glob("expiry-*"))

    await eventually(removed)
    made.close()


async def _fewer(stream: Stream, before: int) -> bool:
    return stream.messages < before or not before


async def test_entries_of_replaced_messages_do_not_accumulate(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry_table, "RECENT_MAX", 10)
    monkeypatch.setattr(message_ttls, "SWEEP_ENTRIES_MIN", 40)
    stream = await made.create("s", **TTL, max_msgs_per_subject=1)
    for _ in range(50):
        await publish(stream, *["1h"] * 10)
        ttls = await caught_up(made)
    assert len(ttls._table) <= 60


async def test_messages_in_the_bucket_only_are_not_read_again(
    made: Streaming, world: World, reads: list[int]
) -> None:
    stream = await saved(made, *["10"] * 9, "never")
    await drop_wal(made, stream)
    del reads[:]
    made, stream = await start_again(made, "s")
    await caught_up(made)
    assert reads == []
    world.clock.pass_seconds(11)
    await becomes(made, stream, b"never")
    made.close()


async def test_without_a_checkpoint_messages_are_read_from_the_bucket(
    made: Streaming, world: World, reads: list[int]
) -> None:
    stream = await saved(made, *["10"] * 9, "never")
    await drop_wal(made, stream)
    directory = await made.served.crash()
    made.close()
    next(directory.rglob(FILE_NAME)).unlink()
    del reads[:]
    with capture_logs() as logs:
        made, stream = await start(world, directory)
        await caught_up(made)
    assert sorted(set(reads)) == list(range(10))
    assert "expiry_rebuilt" in [log["event"] for log in logs]
    world.clock.pass_seconds(11)
    await becomes(made, stream, b"never")
    made.close()


async def test_a_broker_that_takes_a_stream_over_expires_its_messages(
    made: Streaming, world: World
) -> None:
    stream = await saved(made, "10", "never", "50")
    await drop_wal(made, stream)
    await stop(made)
    taken = Streaming(await serve(world, name="b2"))
    found = taken.streams.get("s")
    assert found is not None
    await caught_up(taken)
    world.clock.pass_seconds(11)
    await becomes(taken, found, b"never", b"50")
    await publish(found, "5")
    world.clock.pass_seconds(6)
    await becomes(taken, found, b"never", b"50")
    taken.close()


def _flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def _change(path: Path, **fields: Any) -> None:
    found = form.decode_checkpoint(path.read_bytes())
    path.write_bytes(form.encode_checkpoint(replace(found, **fields)))


def _empty_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": _flip,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "a directory": _empty_directory,
    "another log's": lambda path: _change(path, lineage="other"),
    "newer than the log": lambda path: _change(path, next_offset=1000),
    "of a later version": lambda path: _change(path, version=99),
    "without its run": lambda path: next(path.parent.glob("expiry-*")).unlink(),
    "with a damaged run": lambda path: _flip(next(path.parent.glob("expiry-*"))),
    "with an empty run": lambda path: next(path.parent.glob("expiry-*")).write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
async def test_a_damaged_checkpoint_is_logged_and_the_table_is_built_again(
    made: Streaming,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], object],
) -> None:
    monkeypatch.setattr(expiry, "RETRY_SECONDS", 0.01)
    await saved(made, "10", "never", "50")
    directory = await made.served.crash()
    made.close()
    damage(next(directory.rglob(FILE_NAME)))
    with capture_logs() as logs:
        made, stream = await start(world, directory)
        world.clock.pass_seconds(11)
        await becomes(made, stream, b"never", b"50")
        world.clock.pass_seconds(40)
        await becomes(made, stream, b"never")
    assert [log["event"] for log in logs].count("expiry_rebuilt") == 1
    made.close()


async def test_a_run_that_no_checkpoint_names_is_removed(made: Streaming) -> None:
    stream = await saved(made, "10")
    await stream.opened.log.side_files.write("expiry-0000000009", b"left by a crash")
    made, stream = await start_again(made, "s")
    await caught_up(made)
    assert await stream.opened.log.side_files.names("expiry") == ["expiry", "expiry-0000000001"]
    made.close()


async def test_failed_checkpoints_bound_memory_and_do_not_stop_expiry(
    made: Streaming, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry_table, "RECENT_MAX", 20)
    monkeypatch.setattr(message_ttls, "READ_BYTES", 1)
    monkeypatch.setattr(expiry, "RETRY_SECONDS", 0.01)
    stream = await made.create("s", **TTL)
    disk = made.served.broker.logs.disk
    create = disk.create

    def failing(path: Path, pieces: Sequence[Buffer]) -> int:
        if path.name.startswith("expiry"):
            raise OSError(errno.ENOSPC, "full")
        return create(path, pieces)

    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(disk, "create", failing)
        for _ in range(20):
            await publish(stream, *["10"] * 10)
        ttls = ttls_of(made)

        async def full() -> bool:
            return ttls.full

        await eventually(full)
        assert ttls.entries_in_memory <= 30
        world.clock.pass_seconds(11)
        await becomes(made, stream)
    assert "expiry_not_saved" in [log["event"] for log in logs]


async def test_messages_that_become_readable_again_expire(made: Streaming, world: World) -> None:
    stream = await saved(made, "10", "never", "50")
    await stream.delete([0])
    ttls = await caught_up(made)
    ttls._table = ttls._empty_table()
    bitmap = stream.opened.log.state.bitmap(stream.partition.id)
    assert bitmap is not None
    await stream.opened.log.restore(stream.partition.id, bitmap.copy())
    world.clock.pass_seconds(60)
    await becomes(made, stream, b"never")


async def test_a_stream_in_memory_expires_messages_and_writes_nothing(
    made: Streaming, world: World, tmp_path: Path
) -> None:
    await made.served.create(memory("m"))
    found = made.streams.get("m")
    assert found is not None
    stream = await made.streams.update(replace(found.config, allow_msg_ttl=True))
    await stream.opened.log.append(Run(b"m", [b"1", b"2"], [block("Nats-TTL: 2"), b""]))
    world.clock.pass_seconds(3)
    await becomes(made, stream, b"2")
    await stop(made)
    assert list(tmp_path.rglob("expiry*")) == []


async def test_a_stream_without_ttls_reads_and_writes_nothing_for_them(
    made: Streaming, world: World, reads: list[int]
) -> None:
    stream = await made.create("s", subjects=["s"], max_age=10_000_000_000)
    await publish(stream, "5", "6")
    directory = await stop(made)
    made, stream = await start(world, directory)
    world.clock.pass_seconds(11)
    await becomes(made, stream)
    assert await stream.opened.log.side_files.names("expiry") == []
    assert reads == []
    made.close()
