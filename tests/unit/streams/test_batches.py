"""Atomic batches: all of their messages are stored or none, whatever fails in between."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from msgspec.structs import replace

from penstock.formats.frames import Kind
from penstock.log import scan_file
from penstock.streams import batches
from penstock.streams.appender import Appender
from penstock.streams.stream import Stream
from penstock.wire.parser import Publishes
from tests.broker.storage import World
from tests.broker.streams import Streaming, block, fail_once, start_again
from tests.broker.topics import serve
from tests.eventually import eventually


def in_batch(name: str, sequence: int, *fields: str) -> bytes:
    return block(f"Nats-Batch-Id: {name}", f"Nats-Batch-Sequence: {sequence}", *fields)


COMMIT = "Nats-Batch-Commit: 1"
END = "Nats-Batch-Commit: eob"
STAGED: object = {}


def committed(seq: int, count: int, name: str = "b") -> object:
    return {"stream": "s", "seq": seq, "batch": name, "count": count}


def err_code(answer: object) -> object:
    assert isinstance(answer, dict)
    return answer["error"]["err_code"]


async def payloads(stream: Stream) -> list[bytes]:
    return [text async for rows in stream.rows_from(0, 5000) for text in rows.payloads]


async def stage(made: Streaming, *texts: bytes, name: str = "b", subject: str = "s.a") -> None:
    for sequence, text in enumerate(texts, 1):
        assert await made.publish(subject, text, in_batch(name, sequence)) == STAGED


def publish_all(made: Streaming, run: Publishes, owner: int = 0) -> None:
    publisher = made.streams.route(run.subjects[0])
    assert publisher is not None
    publisher.publish(run, lambda: None, owner)


def advisories(made: Streaming) -> list[tuple[bytes, bytes]]:
    """Subject and text of every advisory that the streams have sent."""
    return [(subject, text) for subject, _, _, text in made.sent]


@pytest.mark.feature("P03")
async def test_a_batch_is_invisible_until_its_commit_and_complete_after_it(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_atomic=True)
    await stage(made, b"1", b"2")
    assert stream.messages == 0
    assert await made.publish("s.x", b"between") == {"stream": "s", "seq": 1}
    assert await made.publish("s.b", b"3", in_batch("b", 3, COMMIT)) == committed(4, 3)
    assert await payloads(stream) == [b"between", b"1", b"2", b"3"]
    assert made.streams.open_batches.batches == made.streams.open_batches.size_bytes == 0


@pytest.mark.feature("P03")
async def test_a_commit_message_may_be_left_out_of_the_batch(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_atomic=True)
    await stage(made, b"1", b"2")
    assert await made.publish("s.b", b"not stored", in_batch("b", 3, END)) == committed(2, 2)
    rows = await stream.read_offsets([0, 1])
    assert list(rows.payloads) == [b"1", b"2"]
    assert list(rows.headers or ()) == [in_batch("b", 1), in_batch("b", 2, COMMIT)]


async def test_a_batch_received_in_one_run_is_one_frame(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_atomic=True)
    count = 1000
    blocks = [in_batch("b", n) for n in range(1, count)] + [in_batch("b", count, COMMIT)]
    subjects = [b"s.%d" % n for n in range(count)]
    replies = [b""] * (count - 1) + [b"done"]
    publish_all(made, Publishes(subjects, replies, blocks, [b"x" * 100] * count))

    async def done() -> bool:
        return b"done" in made.answers

    await eventually(done)
    assert made.answers == {b"done": committed(count, count)}
    disk, paths = made.served.broker.logs._engine.disk, stream.opened.log.directory.glob("wal-*")
    scans = [scan_file(disk, path, None, 0) for path in paths]
    found = [item.header for scanned in scans for item in scanned.found]
    assert [frame.entries for frame in found if frame.kind == Kind.BATCH] == [count]


@pytest.mark.feature("P03")
async def test_a_file_cut_within_a_batch_contains_none_of_its_messages(
    made: Streaming, world: World
) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_atomic=True)
    await made.publish("s.a", b"before")
    await stage(made, *[b"%d" % n * 50 for n in range(20)])
    await stream.opened.log.writer.flush()
    active = stream.opened.log.writer.active
    assert active is not None
    path, before = active.file.path, active.file.end
    assert await made.publish("s.a", b"last", in_batch("b", 21, COMMIT)) == committed(22, 21)
    after = active.file.end
    made.close()
    directory = await made.served.crash()
    name = path.relative_to(made.served.broker.directory)
    found: list[int] = []
    for number, end in enumerate([before, before + 1, (before + after) // 2, after - 1, after]):
        copy = directory.with_name(f"cut{number}")
        shutil.copytree(directory, copy)
        (copy / name).write_bytes((copy / name).read_bytes()[:end])
        other = Streaming(await serve(world, copy))
        again = other.streams.get("s")
        assert again is not None
        found.append(len(await payloads(again)))
        other.close()
        await other.served.crash()
    assert found == [1, 1, 1, 1, 22]


@pytest.mark.feature("P03")
async def test_a_committed_batch_survives_a_restart_and_an_open_one_does_not(
    made: Streaming,
) -> None:
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    await stage(made, b"1")
    await made.publish("s.a", b"2", in_batch("b", 2, COMMIT))
    await stage(made, b"lost", name="c")
    made, stream = await start_again(made, "s")
    assert await payloads(stream) == [b"1", b"2"]
    assert err_code(await made.publish("s.a", b"x", in_batch("c", 2, COMMIT))) == 10176
    made.close()


async def test_a_batch_is_answered_when_it_is_durable(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_atomic=True)
    await stage(made, b"1")
    fail_once(made, monkeypatch)
    assert err_code(await made.publish("s.a", b"2", in_batch("b", 2, COMMIT))) == 10077
    assert stream.messages == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (["Nats-Expected-Last-Sequence: 9"], 10071),
        (["Nats-Expected-Last-Sequence: 2"], 10164),
        (["Nats-Expected-Last-Subject-Sequence: 1"], 10164),
        (["Nats-Expected-Last-Msg-Id: x"], 10177),
        (["Nats-Expected-Stream: other"], 10060),
        (["Nats-Msg-Id: known"], 10201),
        (["Nats-Msg-Id: first"], 10201),
        (["Nats-Rollup: sub"], 10111),
        (["Nats-TTL: 1s"], 10166),
        (["Nats-Incr: 1"], 10168),
    ],
)
async def test_a_message_that_fails_its_check_fails_the_whole_batch(
    made: Streaming, fields: list[str], code: int
) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_atomic=True)
    await made.publish("s.a", b"0", block("Nats-Msg-Id: known"))
    first = in_batch("b", 1, "Nats-Msg-Id: first")
    assert await made.publish("s.a", b"1", first) == STAGED
    last = in_batch("b", 2, COMMIT, *fields)
    assert err_code(await made.publish("s.a", b"", last)) == code
    assert await payloads(stream) == [b"0"]
    assert await made.publish("s.a", b"1", in_batch("b", 1, COMMIT)) == committed(2, 1)


async def test_ids_of_a_batch_are_known_from_its_commit_on(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    assert await made.publish("s.a", b"1", in_batch("b", 1, "Nats-Msg-Id: i")) == STAGED
    second = in_batch("b", 2, COMMIT, "Nats-Msg-Id: j")
    assert await made.publish("s.a", b"2", second) == committed(2, 2)
    for name, seq in (("i", 1), ("j", 2)):
        reply = await made.publish("s.a", b"x", block(f"Nats-Msg-Id: {name}"))
        assert reply == {"stream": "s", "seq": seq, "duplicate": True}


async def test_messages_of_a_batch_may_roll_up_and_expire(made: Streaming) -> None:
    stream = await made.create(
        "s", subjects=["s.>"], allow_atomic=True, allow_rollup_hdrs=True, allow_msg_ttl=True
    )
    await made.publish("s.a", b"old")
    await made.publish("s.b", b"other")
    await made.publish("s.a", b"new", in_batch("b", 1, "Nats-Rollup: sub"))
    last = in_batch("b", 2, COMMIT, "Nats-TTL: 5s")
    assert await made.publish("s.a", b"more", last) == committed(4, 2)
    await stream.opened.log.writer.flush()
    assert await payloads(stream) == [b"other", b"new", b"more"]
    made.served.broker.world.clock.pass_seconds(6)
    made.streams._served["s"].expiry.start()

    async def expired() -> bool:
        return await payloads(stream) == [b"other", b"new"]

    await eventually(expired)


async def test_a_batch_that_exceeds_a_limit_is_not_stored_in_part(made: Streaming) -> None:
    limits = {"max_msgs": 2, "discard": "new"}
    stream = await made.create("s", subjects=["s.>"], allow_atomic=True, **limits)
    await stage(made, b"1", b"2")
    assert err_code(await made.publish("s.a", b"3", in_batch("b", 3, COMMIT))) == 10077
    assert stream.messages == 0


@pytest.mark.feature("P03")
async def test_a_gap_abandons_a_batch(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    await stage(made, b"1")
    assert err_code(await made.publish("s.a", b"3", in_batch("b", 3, COMMIT))) == 10176
    assert err_code(await made.publish("s.a", b"2", in_batch("b", 2, COMMIT))) == 10176
    ((subject, text),) = advisories(made)
    assert subject == b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.s"
    assert text.endswith(b'"stream":"s","batch":"b","reason":"incomplete"}')


async def test_an_idle_batch_is_abandoned(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    staging = made.streams.open_batches
    staging.idle_seconds = 0.05
    await stage(made, b"1")

    async def given_up() -> bool:
        return staging.batches == 0

    await eventually(given_up)
    assert [text.rpartition(b'"reason":')[2] for _, text in advisories(made)] == [b'"timeout"}']
    assert staging.size_bytes == 0
    assert err_code(await made.publish("s.a", b"2", in_batch("b", 2, COMMIT))) == 10176


async def test_a_committed_batch_is_never_abandoned(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    staging = made.streams.open_batches
    staging.idle_seconds = 0.02
    assert await made.publish("s.a", b"1", in_batch("b", 1, COMMIT)) == committed(1, 1)
    staging.abandon_all_of(0)
    await asyncio.sleep(0.05)
    assert advisories(made) == []
    assert staging.batches == 0


@pytest.mark.feature("P03")
async def test_a_closed_connection_abandons_its_batches(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    staging = made.streams.open_batches
    for owner, name in ((1, "b"), (1, "c"), (2, "d")):
        publish_all(made, Publishes([b"s.a"], [b""], [in_batch(name, 1)], [b"1"]), owner)

    async def begun() -> bool:
        return staging.batches == 3

    await eventually(begun)
    staging.abandon_all_of(1)
    staging.abandon_all_of(3)
    assert staging.batches == 1
    assert err_code(await made.publish("s.a", b"2", in_batch("b", 2, COMMIT))) == 10176
    assert await made.publish("s.a", b"2", in_batch("d", 2, COMMIT)) == committed(2, 2, "d")
    assert staging._owned == {}


@pytest.mark.parametrize(("name", "code"), [("STREAM_BATCHES_MAX", 10210), ("BATCHES_MAX", 10210)])
async def test_the_number_of_open_batches_is_limited(
    made: Streaming, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    monkeypatch.setattr(batches, name, 2)
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    for batch in ("b", "c"):
        await stage(made, b"1", name=batch)
    assert err_code(await made.publish("s.a", b"1", in_batch("d", 1))) == code
    await made.publish("s.a", b"2", in_batch("b", 2, COMMIT))
    await stage(made, b"1", name="d")


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("BATCH_MESSAGES_MAX", 10199, b'"large"}'),
        ("BATCH_BYTES_MAX", 10199, b'"large"}'),
        ("STAGED_BYTES_MAX", 10023, b'"large"}'),
    ],
)
async def test_the_size_of_a_batch_is_limited(
    made: Streaming, monkeypatch: pytest.MonkeyPatch, name: str, code: int, reason: bytes
) -> None:
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    await stage(made, b"1", b"2")
    limit = 2 if name == "BATCH_MESSAGES_MAX" else made.streams.open_batches.size_bytes
    monkeypatch.setattr(batches, name, limit)
    assert err_code(await made.publish("s.a", b"3", in_batch("b", 3))) == code
    assert [text.rpartition(b'"reason":')[2] for _, text in advisories(made)] == [reason]
    assert made.streams.open_batches.size_bytes == 0


async def test_a_commit_message_does_not_count_towards_the_batch_limit(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_MESSAGES_MAX", 2)
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    await stage(made, b"1", b"2")
    assert await made.publish("s.a", b"", in_batch("b", 3, END)) == committed(2, 2)


async def test_an_update_that_disallows_batches_discards_open_ones(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    stream = made.streams.get("s")
    assert stream is not None
    await stage(made, b"1")
    await made.streams.update(replace(stream.config, allow_atomic=False))
    assert made.streams.open_batches.batches == 0
    assert err_code(await made.publish("s.a", b"2", in_batch("b", 2, COMMIT))) == 10174


async def test_a_deleted_stream_discards_its_batches(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_atomic=True)
    await stage(made, b"1")
    await made.streams.delete("s")
    assert made.streams.open_batches.batches == made.streams.open_batches.size_bytes == 0


async def test_an_append_during_the_checks_of_a_batch_repeats_them(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_atomic=True)
    await stage(made, b"1")
    last_sequence, ends = Appender.last_sequence, list[int]()

    async def append_first(appender: Appender, subject: bytes) -> int:
        ends.append(stream.next_offset)
        if len(ends) == 1:
            await made.push(stream, b"pushed", subject=b"s.new")
        return await last_sequence(appender, subject)

    monkeypatch.setattr(Appender, "last_sequence", append_first)
    commit = in_batch("b", 2, COMMIT, "Nats-Expected-Last-Subject-Sequence: 0")
    reply = await made.publish("s.other", b"2", commit)
    assert ends == [0, 1]
    assert reply == committed(3, 2)
    assert await payloads(stream) == [b"pushed", b"1", b"2"]


async def test_the_required_api_level_is_not_stored(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_atomic=True)
    asked = in_batch("b", 1, COMMIT, "Nats-Required-Api-Level: 1")
    assert await made.publish("s.a", b"1", asked) == committed(1, 1)
    rows = await stream.get(0)
    assert list(rows.headers or ()) == [in_batch("b", 1, COMMIT)]
    assert batches.without_level(block("Nats-Required-Api-Level: 1")) == b""
