"""Limits hold at every confirmation, over any protocol; bytes are counted as in nats-server."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from penstock.log import LogMode
from penstock.model.batch import AtHead, Gone
from penstock.model.errors import DurabilityUnmet
from penstock.model.run import Run
from penstock.model.units import Offset
from penstock.streams import stream_counts, subject_offsets
from penstock.streams.stream import Stream
from penstock.wire.parser import Publishes
from tests.broker.storage import World
from tests.broker.streams import Streaming, fail_once, start_again, stream_all
from tests.eventually import eventually

BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"


class Kept(NamedTuple):
    """A message that is there."""

    offset: int
    subject: bytes
    headers: bytes
    payload: bytes

    @property
    def size(self) -> int:
        extra = 4 + len(self.headers) if self.headers else 0
        return 30 + len(self.subject) + len(self.payload) + extra


async def held(stream: Stream) -> list[Kept]:
    """Everything that can be read."""
    found: list[Kept] = []
    offset = 0
    while not isinstance(rows := await stream.read(offset, 1000), AtHead):
        if isinstance(rows, Gone):
            offset = rows.earliest
            continue
        blocks = rows.headers or [b""] * rows.count
        found += map(Kept, rows.offsets, rows.subjects, blocks, rows.payloads)
        offset = rows.offsets[-1] + 1
    return found


async def consistent(stream: Stream) -> list[Kept]:
    """What is there, which is what the stream tells of itself, and within its limits."""
    kept, config = await held(stream), stream.config
    await stream.measured()
    assert stream.messages == stream.counts.live() == len(kept)
    assert stream.size_bytes == sum(message.size for message in kept)
    if config.max_msgs > 0:
        assert len(kept) <= config.max_msgs
    if config.max_bytes > 0:
        assert stream.size_bytes <= config.max_bytes
    if config.max_msgs_per_subject > 0:
        subjects = [message.subject for message in kept]
        assert all(subjects.count(name) <= config.max_msgs_per_subject for name in set(subjects))
    return kept


def payloads(kept: list[Kept]) -> list[bytes]:
    return [message.payload for message in kept]


async def test_bytes_are_counted_as_nats_counts_them(made: Streaming) -> None:
    stream = await made.create("s", subjects=["world", "h"])
    await made.publish("world", b"Hello world!")
    assert stream.size_bytes == 47
    await made.publish("h", b"x", BLOCK)
    assert stream.size_bytes == 47 + 32 + 4 + len(BLOCK)
    memory = await made.create("m", subjects=["memory"], storage="memory")
    await made.publish("memory", b"abc")
    await made.publish("memory", b"abc", BLOCK)
    assert memory.size_bytes == (16 + 6 + 3) * 2 + len(BLOCK)
    await consistent(stream)


async def test_appended_messages_count_and_deleted_ones_do_not_before_they_are_durable(
    made: Streaming,
) -> None:
    stream = await made.create("s", subjects=["s"])
    await made.push(stream, b"1", b"2", b"3")
    stored = stream.opened.log.append(Run(b"s", [b"4"]))
    stream.enforcer.delete_soon(Offset(1), [2], b"s")
    assert stream.counts.alive(range(-1, 9)) == {1, 3}
    await stored
    assert stream.counts.alive(range(-1, 9)) == {1, 3}


async def test_bytes_are_the_same_after_a_restart_and_shrink_with_deletions(
    made: Streaming,
) -> None:
    stream = await made.create("s", subjects=["s.>"])
    for number in range(10):
        await made.publish(f"s.{number}", b"x" * number, BLOCK if number % 2 else b"")
    before = stream.size_bytes
    await stream.delete([3])
    made, stream = await start_again(made, "s")
    try:
        await stream.measured()
        assert stream.size_bytes == before - (30 + 3 + 3 + 4 + len(BLOCK))
        await consistent(stream)
        await stream.delete([5, 6, 5])
        await consistent(stream)
        await made.publish("s.new", b"more")
        await stream.purge(8)
        assert [message.offset for message in await consistent(stream)] == [8, 9, 10]
        await stream.purge(11)
        assert stream.size_bytes == 0
        await consistent(stream)
    finally:
        made.close()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "limits",
    [
        {"max_msgs": 5},
        {"max_bytes": 5 * 40},
        {"max_msgs_per_subject": 2},
        {"max_msgs_per_subject": 1},
        {"max_msgs": 5, "max_msgs_per_subject": 2},
        {"max_bytes": 200, "max_msgs_per_subject": 2, "max_msgs": 6},
    ],
    ids=str,
)
async def test_limits_hold_whenever_a_publish_is_confirmed(
    made: Streaming, limits: dict[str, int], restart: bool
) -> None:
    stream = await made.create("s", subjects=["s.>"], **limits)
    for number in range(20):
        await made.publish(f"s.{number % 3}", b"x" * 5)
        await consistent(stream)
    if restart:
        made, stream = await start_again(made, "s")
        for number in range(3):
            await made.publish(f"s.{number}", b"x" * 5)
            await consistent(stream)
    for number in range(20):
        await made.push(stream, *[b"y" * 5] * 3, subject=b"s.%d" % (number % 3))
        await consistent(stream)
    made.close()


class Played:
    """A stream, and beside it a list of what has to be in it."""

    def __init__(self, made: Streaming, stream: Stream, seed: int) -> None:
        self.made, self.stream, self.chance = made, stream, random.Random(seed)
        self.model: list[Kept] = []
        self.next = 0

    def subject(self) -> bytes:
        return b"s.%d" % self.chance.randrange(4)

    def text(self) -> bytes:
        return b"x" * self.chance.randrange(30)

    def some(self) -> tuple[list[bytes], list[bytes]]:
        count = self.chance.randrange(1, 6)
        return [self.subject() for _ in range(count)], [b"%d" % n for n in range(count)]

    def stored(self, subjects: list[bytes], texts: list[bytes], block: bytes = b"") -> None:
        for subject, text in zip(subjects, texts, strict=True):
            self.model.append(Kept(self.next, subject, block, text))
            self.next += 1
        self.limit()

    def limit(self) -> None:
        model, config = self.model, self.stream.config
        most = config.max_msgs_per_subject
        for subject in {message.subject for message in model} if most > 0 else ():
            for old in [message for message in model if message.subject == subject][:-most]:
                model.remove(old)
        while 0 < config.max_msgs < len(model):
            model.pop(0)
        while 0 < config.max_bytes < sum(message.size for message in model):
            model.pop(0)

    async def publish(self) -> None:
        subject, text = self.subject(), self.text()
        block = BLOCK if self.chance.random() < 0.3 else b""
        answer = await self.made.publish(subject.decode(), text, block)
        assert answer == {"stream": "s", "seq": self.next + 1}
        self.stored([subject], [text], block)

    async def run(self) -> None:
        subjects, texts = self.some()
        publisher = self.made.streams.route(subjects[0])
        assert publisher is not None
        run = Publishes(subjects, [b""] * len(texts), None, texts)
        publisher.publish(run, lambda: None)
        await publisher.drained()
        await self.stream.opened.log.writer.flush()
        self.stored(subjects, list(texts))

    async def push(self) -> None:
        subjects, texts = self.some()
        await self.stream.opened.log.append(Run(subjects, list(texts)))
        await self.stream.enforcer.looked_up()
        await self.stream.opened.log.writer.flush()
        self.stored(subjects, texts)

    async def delete(self) -> None:
        gone = self.chance.sample(self.model, min(2, len(self.model)))
        await self.stream.delete([message.offset for message in gone])
        self.model = [message for message in self.model if message not in gone]

    async def purge(self) -> None:
        if self.model and self.chance.random() < 0.3:
            before = self.chance.choice(self.model).offset
            await self.stream.purge(before)
            self.model = [message for message in self.model if message.offset >= before]

    async def roll_up(self) -> None:
        subject, text = self.subject(), self.text()
        which = self.chance.choice([b"sub", b"sub", b"all"])
        block = b"NATS/1.0\r\nNats-Rollup: %b\r\n\r\n" % which
        await self.made.publish(subject.decode(), text, block)
        # Stored first, within the limits; then it replaces others.
        self.stored([subject], [text], block)
        new = self.next - 1
        self.model = [
            message
            for message in self.model
            if message.offset == new or (which == b"sub" and message.subject != subject)
        ]

    async def start_again(self) -> None:
        if self.chance.random() < 0.2:
            self.made, self.stream = await start_again(self.made, "s")
            await self.stream.measured()


@pytest.mark.parametrize("seed", [*range(10), 13, 68])
async def test_random_appends_and_deletions_retain_exactly_the_right_messages(
    made: Streaming, seed: int
) -> None:
    chance = random.Random(seed)
    limits = {
        "max_msgs": chance.choice([-1, 7]),
        "max_bytes": chance.choice([-1, 300]),
        "max_msgs_per_subject": chance.choice([-1, 1, 3]),
    }
    stream = await made.create("s", subjects=["s.>"], allow_rollup_hdrs=True, **limits)
    played = Played(made, stream, seed)
    steps = [played.publish, played.run, played.push, played.delete, played.purge]
    for number in range(50):
        step = chance.choice([*steps, played.roll_up, played.start_again])
        await step()
        assert await consistent(played.stream) == played.model, (seed, number, step.__name__)
    played.made.close()


async def test_excess_is_deleted_in_the_group_commit_that_causes_it(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"], max_msgs=3)
    seen: list[int] = []
    stream.changed.add(lambda: seen.append(stream.messages))
    runs = [stream.opened.log.append(Run(b"s", [b"x"] * 2)) for _ in range(10)]
    await asyncio.gather(*runs)
    assert seen
    assert max(seen) <= 3


async def test_messages_that_wait_for_the_disk_are_counted_once(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], max_msgs=4, max_msgs_per_subject=2)
    runs = [stream.opened.log.append(Run(b"s.%d" % (n % 3), [b"%d" % n])) for n in range(30)]
    assert stream.counts.live() <= 4
    await asyncio.gather(*runs)
    assert payloads(await consistent(stream)) == [b"26", b"27", b"28", b"29"]


async def test_a_message_larger_than_the_byte_limit_is_deleted(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"], max_bytes=100)
    await made.publish("s", b"small")
    assert await made.publish("s", b"x" * 200) == {"stream": "s", "seq": 2}
    assert await consistent(stream) == []
    assert (stream.first_seq, stream.last_seq) == (3, 2)


async def test_after_a_restart_only_the_excess_is_deleted(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"], max_bytes=41 * 10)
    for number in range(10):
        await made.publish("s", b"%010d" % number)
    made, stream = await start_again(made, "s")
    await stream.measured()
    await made.publish("s", b"%010d" % 10)
    assert payloads(await consistent(stream)) == [b"%010d" % n for n in range(1, 11)]
    made.close()


async def test_beyond_the_remembered_sizes_the_oldest_messages_are_deleted_one_by_one(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_counts, "SIZES_MAX", 16)
    stream = await made.create("s", subjects=["s"], max_bytes=41 * 100)
    for start in range(0, 100, 10):
        await made.push(stream, *[b"%010d" % n for n in range(start, start + 10)], subject=b"s")
    assert len(await consistent(stream)) == 100
    for number in range(100, 150):
        await made.push(stream, b"%010d" % number, subject=b"s")

        async def trimmed() -> bool:
            return stream.messages <= 100

        await eventually(trimmed)
        assert payloads(await held(stream)) == [
            b"%010d" % n for n in range(number - 99, number + 1)
        ]
    await stream.measured()
    assert stream.size_bytes == 41 * 100


async def test_the_number_of_cached_subjects_is_limited(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_offsets, "SUBJECTS_MAX", 5)
    stream = await made.create("s", subjects=["s.>"], max_msgs_per_subject=1)
    for _ in range(2):
        runs = [stream.opened.log.append(Run(b"s.%d" % n, [b"x"])) for n in range(20)]
        again_at_once = [stream.opened.log.append(Run(b"s.%d" % n, [b"y"])) for n in range(20)]
        await asyncio.gather(*runs, *again_at_once)
    await stream.enforcer.looked_up()
    await stream.opened.log.writer.flush()
    kept = await consistent(stream)
    assert {message.subject: message.payload for message in kept} == {
        b"s.%d" % n: b"y" for n in range(20)
    }


async def test_smaller_limits_hold_when_the_update_returns(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"])
    for number in range(12):
        await made.publish(f"s.{number % 3}", b"%d" % number)
    await made.streams.update(replace(stream.config, max_msgs_per_subject=3))
    assert len(await consistent(stream)) == 9
    await made.streams.update(replace(stream.config, max_msgs=4))
    assert payloads(await consistent(stream)) == [b"8", b"9", b"10", b"11"]
    await made.streams.update(replace(stream.config, max_bytes=2 * 35))
    assert payloads(await consistent(stream)) == [b"10", b"11"]


async def test_messages_lost_to_a_disk_error_are_not_counted(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"max_msgs": 5, "max_bytes": 1000, "max_msgs_per_subject": 2}
    stream = await made.create("s", subjects=["s.>"], **limits)
    for number in range(8):
        await made.publish(f"s.{number % 4}", b"%d" % number)
    before = await consistent(stream)
    fail_once(made, monkeypatch)
    with pytest.raises(DurabilityUnmet):
        await stream.opened.log.append(Run([b"s.1", b"s.9", b"s.1", b"s.1"], [b"lost"] * 4))
    assert await consistent(stream) == before

    async def open_again() -> bool:
        return stream.opened.log.mode is LogMode.OPEN

    await eventually(open_again)
    for number in range(8, 20):
        assert await made.publish(f"s.{number % 4}", b"%d" % number) == {
            "stream": "s",
            "seq": number + 1,
        }
        await consistent(stream)
    assert payloads(await consistent(stream)) == [b"%d" % n for n in range(15, 20)]


async def test_a_deletion_that_fails_leaves_the_counts_as_they_were(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s"])
    for number in range(4):
        await made.publish("s", b"%d" % number)
    before = await consistent(stream)
    fail_once(made, monkeypatch)
    with pytest.raises(DurabilityUnmet):
        await stream.delete([1, 2])
    assert await consistent(stream) == before


async def test_limits_hold_although_the_queue_is_full(world: World) -> None:
    world.log_settings = dataclasses.replace(world.log_settings, pending_bytes_max=40)
    made = await stream_all(world)
    stream = await made.create("s", subjects=["s"], max_msgs=1, max_msgs_per_subject=1)
    for number in range(10):
        await made.push(stream, b"%038d" % number, subject=b"s")
        assert payloads(await consistent(stream)) == [b"%038d" % number]
    made.close()


async def test_messages_purged_by_retention_are_not_counted(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"])
    for number in range(6):
        await made.publish("s", b"%d" % number)
    await stream.opened.log.purge(stream.partition.id, Offset(2))
    assert len(await consistent(stream)) == 4
    made, stream = await start_again(made, "s")
    await stream.measured()
    await stream.opened.log.purge(stream.partition.id, Offset(4))
    await made.publish("s", b"6")
    assert payloads(await consistent(stream)) == [b"4", b"5", b"6"]
    made.close()


async def test_a_gap_does_not_count(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"], first_seq=100, max_msgs=2)
    for number in range(3):
        await made.publish("s", b"%d" % number)
    assert [message.offset for message in await consistent(stream)] == [100, 101]
