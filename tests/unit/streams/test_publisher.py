"""The reply to a publish and its time; errors are those of nats-server."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial

import pytest
from msgspec.structs import replace

from penstock.log import LogMode, WhenFull
from penstock.model import names, schema
from penstock.model.resources import TopicSpec
from penstock.streams.publisher import Publisher
from penstock.streams.rows import Rows
from penstock.streams.stream import Stream
from penstock.wire.parser import Publishes
from tests.broker.storage import World
from tests.broker.streams import Streaming, block, fail_once, start_again, stream_all
from tests.eventually import eventually
from tests.unit.log.disks import Hand


def publisher_of(made: Streaming, subject: bytes) -> Publisher:
    publisher = made.streams.route(subject)
    assert publisher is not None
    return publisher


def error(code: int, err_code: int, text: str, stream: str = "s") -> object:
    told = {"code": code, "err_code": err_code, "description": text}
    return {"error": told, "stream": stream, "seq": 0}


def stored(seq: int, stream: str = "s") -> object:
    return {"stream": stream, "seq": seq}


def duplicate(seq: int, stream: str = "s") -> object:
    return {"stream": stream, "seq": seq, "duplicate": True}


async def payloads(stream: Stream) -> list[bytes]:
    return [text async for rows in stream.rows_from(0, 100) for text in rows.payloads]


async def answered(made: Streaming, count: int) -> None:
    async def all_there() -> bool:
        return len(made.answers) >= count

    await eventually(all_there)


@pytest.mark.feature("P03")
async def test_a_publish_is_answered_with_stream_and_sequence(made: Streaming) -> None:
    stream = await made.create("s", subjects=["a.>"])
    assert await made.publish("a.b", b"1") == stored(1)
    assert await made.publish("a.c", b"2", block("A: b")) == stored(2)
    rows = await stream.read(0, 10)
    assert isinstance(rows, Rows)
    assert list(rows.subjects) == [b"a.b", b"a.c"]
    assert list(rows.headers or ()) == [b"", block("A: b")]
    assert list(rows.payloads) == [b"1", b"2"]


@pytest.mark.feature("P03")
async def test_a_run_is_stored_at_once_and_answered_on_its_reply_subjects(made: Streaming) -> None:
    stream = await made.create("s", subjects=["a.>"])
    subjects = [b"a.%d" % n for n in range(5)]
    replies = [b"r0", b"", b"r2", b"r2", b""]
    run = Publishes(subjects, replies, None, [b"x"] * 5)
    assert publisher_of(made, b"a.0").publish(run, lambda: None)
    await answered(made, 2)
    assert made.answers == {b"r0": stored(1), b"r2": stored(4)}
    assert stream.messages == 5


async def test_a_publish_that_fails_on_disk_is_refused(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s"])
    fail_once(made, monkeypatch)
    answer = await made.publish("s", b"lost")
    assert isinstance(answer, dict)
    assert answer["error"]["err_code"] == 10077
    assert "disk is broken" in answer["error"]["description"]
    assert stream.messages == 0


async def test_a_stream_without_acks_sends_no_replies(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"], no_ack=True, max_msg_size=100)
    publisher = publisher_of(made, b"s")
    message = block("Nats-Msg-Id: 1")
    run = Publishes([b"s"] * 3, [b"r"] * 3, [message, message, b""], [b"", b"", b"x" * 200])
    publisher.publish(run, lambda: None)
    await publisher.drained()
    await stream.opened.log.writer.flush()
    assert stream.messages == 1
    assert made.answers == {}


@pytest.mark.feature("P03")
async def test_an_id_is_stored_once_within_the_window(made: Streaming, world: World) -> None:
    stream = await made.create("s", subjects=["s"], duplicate_window=10_000_000_000)
    assert await made.publish("s", b"1", block("Nats-Msg-Id: one")) == stored(1)
    assert await made.publish("s", b"2", block("Nats-Msg-Id: two")) == stored(2)
    assert await made.publish("s", b"x", block("Nats-Msg-Id: one")) == duplicate(1)
    assert await made.publish("s", b"x", block("nats-msg-id: one")) == stored(3)
    assert isinstance(world.clock, Hand)
    world.clock.pass_seconds(9)
    assert await made.publish("s", b"x", block("Nats-Msg-Id:  two ")) == duplicate(2)
    world.clock.pass_seconds(2)
    assert await made.publish("s", b"4", block("Nats-Msg-Id: one")) == stored(4)
    assert await payloads(stream) == [b"1", b"2", b"x", b"4"]


@pytest.mark.feature("P03")
async def test_ids_are_known_after_a_restart(made: Streaming, world: World) -> None:
    stream = await made.create("s", subjects=["s"], duplicate_window=10_000_000_000)
    await made.publish("s", b"1", block("Nats-Msg-Id: old"))
    world.clock.pass_seconds(8)
    await made.publish("s", b"2", block("Nats-Msg-Id: new"))
    await made.publish("s", b"3")
    world.clock.pass_seconds(5)
    made, stream = await start_again(made, "s")
    assert await made.publish("s", b"x", block("Nats-Msg-Id: new")) == duplicate(2)
    assert await made.publish("s", b"4", block("Nats-Msg-Id: old")) == stored(4)
    assert await payloads(stream) == [b"1", b"2", b"3", b"4"]
    made.close()


async def test_a_duplicate_is_answered_when_the_first_one_is_durable(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"])
    publisher, told = publisher_of(made, b"s"), list[int]()
    one = block("Nats-Msg-Id: 1")
    stream.changed.add(lambda: told.append(len(made.answers)))
    publisher.publish(Publishes([b"s"] * 2, [b"r1", b"r2"], [one] * 2, [b"x"] * 2), lambda: None)
    await answered(made, 2)
    assert made.answers == {b"r1": stored(1), b"r2": duplicate(1)}
    assert told[0] == 0


async def test_an_id_whose_message_was_lost_is_not_a_duplicate(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s"], allow_msg_ttl=True)
    fail_once(made, monkeypatch)
    lost = await made.publish("s", b"x", block("Nats-Msg-Id: 1", "Nats-TTL: 1s"))
    assert isinstance(lost, dict)
    assert "error" in lost

    async def open_again() -> bool:
        return stream.opened.log.mode is LogMode.OPEN

    await eventually(open_again)
    assert await made.publish("s", b"x", block("Nats-Msg-Id: 1")) == stored(1)
    assert await made.publish("s", b"x", block("Nats-Msg-Id: 1")) == duplicate(1)
    world = made.served.broker.world
    world.clock.pass_seconds(5)
    await made.publish("s", b"y", block("Nats-TTL: never"))
    assert await payloads(stream) == [b"x", b"y"]


async def test_checks_that_wait_for_the_disk_are_answered_when_it_fails(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s"])
    fail_once(made, monkeypatch)
    publisher = publisher_of(made, b"s")
    one = block("Nats-Msg-Id: 1")
    expecting = block("Nats-Expected-Last-Subject-Sequence: 1")
    run = Publishes([b"s"] * 3, [b"r1", b"r2", b"r3"], [one, one, expecting], [b"x"] * 3)
    publisher.publish(run, lambda: None)
    await answered(made, 3)
    assert all("error" in answer for answer in made.answers.values())
    assert stream.messages == 0


@pytest.mark.feature("P03")
@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        (["Nats-Expected-Stream: s"], stored(4)),
        (["Nats-Expected-Stream: t"], error(400, 10060, "expected stream does not match")),
        (["Nats-Expected-Last-Sequence: 3"], stored(4)),
        (["Nats-Expected-Last-Sequence: 2"], error(400, 10071, "wrong last sequence: 3")),
        (["Nats-Expected-Last-Sequence: 0"], error(400, 10071, "wrong last sequence: 3")),
        (["Nats-Expected-Last-Sequence: x"], error(400, 10071, "wrong last sequence: 3")),
        (["Nats-Expected-Last-Subject-Sequence: 2"], stored(4)),
        (["Nats-Expected-Last-Subject-Sequence: 3"], error(400, 10071, "wrong last sequence: 2")),
        (["Nats-Expected-Last-Subject-Sequence: 0"], error(400, 10071, "wrong last sequence: 2")),
        (["Nats-Expected-Last-Subject-Sequence: abc"], error(400, 10071, "wrong last sequence: 2")),
        (
            [
                "Nats-Expected-Last-Subject-Sequence: 3",
                "Nats-Expected-Last-Subject-Sequence-Subject: p.>",
            ],
            stored(4),
        ),
        (
            [
                "Nats-Expected-Last-Subject-Sequence: 1",
                "Nats-Expected-Last-Subject-Sequence-Subject: p.new",
            ],
            error(400, 10071, "wrong last sequence: 0"),
        ),
        (
            ["Nats-Expected-Last-Subject-Sequence-Subject: p.>"],
            error(400, 10193, "missing sequence for expected last sequence per subject"),
        ),
        (["Nats-Expected-Last-Msg-Id: three"], stored(4)),
        (["Nats-Expected-Last-Msg-Id: one"], error(400, 10070, "wrong last msg ID: three")),
        (["Nats-Msg-Id: one"], duplicate(1)),
        (
            ["Nats-Msg-Id: one", "Nats-Expected-Last-Sequence: 1"],
            error(400, 10071, "wrong last sequence: 3"),
        ),
        (["Nats-Msg-Id: one", "Nats-Expected-Last-Msg-Id: x"], duplicate(1)),
        (["Nats-Rollup: sub"], error(500, 10111, "rollup not permitted")),
        (["Nats-TTL: 10"], error(400, 10166, "per-message TTL is disabled")),
        (["Nats-Incr: 1"], error(400, 10168, "message counters is disabled")),
        (["Nats-Batch-Id: b"], error(400, 10174, "atomic publish is disabled")),
        (["Nats-Schedule: @at x"], error(400, 10188, "message schedules is disabled")),
    ],
)
async def test_the_expectations_of_a_publish_are_checked(
    made: Streaming, fields: list[str], answer: object
) -> None:
    stream = await made.create("s", subjects=["p.>"])
    await made.publish("p.a", b"1", block("Nats-Msg-Id: one"))
    await made.publish("p.b", b"2")
    await made.publish("p.a", b"3", block("Nats-Msg-Id: three"))
    assert await made.publish("p.b", b"x", block(*fields)) == answer
    kept = [b"1", b"2", b"3"] + ([b"x"] if answer == stored(4) else [])
    assert await payloads(stream) == kept


@pytest.mark.feature("P03")
async def test_a_subject_that_must_not_exist_yet_is_stored_once(made: Streaming) -> None:
    await made.create("s", subjects=["p.>"])
    new = block("Nats-Expected-Last-Subject-Sequence: 0")
    assert await made.publish("p.new", b"x", new) == stored(1)
    assert await made.publish("p.new", b"x", new) == error(400, 10071, "wrong last sequence: 1")


BIG = b"x" * 300
TOO_BIG = error(400, 10054, "message size exceeds maximum allowed")
WRONG_SEQUENCE = error(400, 10071, "wrong last sequence: 1")
NO_TTL = error(400, 10166, "per-message TTL is disabled")
NO_SEQUENCE = error(400, 10193, "missing sequence for expected last sequence per subject")


@pytest.mark.feature("P03")
@pytest.mark.parametrize(
    ("fields", "text", "answer"),
    [
        (["Nats-Msg-Id: a", "Nats-Rollup: sub"], b"x", duplicate(1)),
        (["Nats-Msg-Id: a", "Nats-TTL: 1"], b"x", NO_TTL),
        (["Nats-Msg-Id: a"], BIG, TOO_BIG),
        (
            ["Nats-Expected-Stream: t", "Nats-TTL: 1"],
            b"x",
            error(400, 10060, "expected stream does not match"),
        ),
        (["Nats-Expected-Stream: t"], BIG, TOO_BIG),
        (["Nats-Expected-Last-Sequence: 9"], BIG, TOO_BIG),
        (["Nats-Expected-Last-Sequence: 9", "Nats-Rollup: sub"], b"x", WRONG_SEQUENCE),
        (["Nats-Expected-Last-Subject-Sequence: 9"], BIG, TOO_BIG),
        (["Nats-Expected-Last-Sequence: 9", "Nats-TTL: 1"], b"x", NO_TTL),
        (
            ["Nats-Expected-Last-Msg-Id: q", "Nats-Rollup: sub"],
            b"x",
            error(400, 10070, "wrong last msg ID: a"),
        ),
        (
            [
                "Nats-Expected-Last-Sequence: 9",
                "Nats-Expected-Last-Subject-Sequence-Subject: p",
            ],
            b"x",
            NO_SEQUENCE,
        ),
        (
            ["Nats-Msg-Id: a", "Nats-Expected-Last-Subject-Sequence-Subject: p"],
            b"x",
            NO_SEQUENCE,
        ),
        (["Nats-TTL: 1"], BIG, TOO_BIG),
        (["Nats-Rollup: sub"], BIG, TOO_BIG),
    ],
)
async def test_the_first_of_several_errors_is_that_of_nats_server(
    made: Streaming, fields: list[str], text: bytes, answer: object
) -> None:
    await made.create("s", subjects=["s"], max_msg_size=120)
    await made.publish("s", b"x", block("Nats-Msg-Id: a"))
    assert await made.publish("s", text, block(*fields)) == answer


async def test_a_sealed_stream_answers_every_publish_with_the_same_error(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"], max_msg_size=120)
    await made.publish("s", b"x", block("Nats-Msg-Id: a"))
    await made.streams.update(replace(stream.config, sealed=True))
    for field in ("Nats-Msg-Id: a", "Nats-Expected-Stream: t", "Nats-Expected-Last-Sequence: 9"):
        answer = await made.publish("s", b"x", block(field))
        assert answer == error(400, 10109, "invalid operation on sealed stream")
    assert await made.publish("s", BIG) == answer


async def test_a_message_without_an_id_resets_the_last_id(made: Streaming) -> None:
    await made.create("s", subjects=["s"])
    await made.publish("s", b"1", block("Nats-Msg-Id: one"))
    await made.publish("s", b"2")
    answer = await made.publish("s", b"3", block("Nats-Expected-Last-Msg-Id: one"))
    assert answer == error(400, 10070, "wrong last msg ID: ")


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\xc3"])
async def test_an_id_that_is_not_utf_8_is_accepted(made: Streaming, bad: bytes) -> None:
    await made.create("s", subjects=["s"])
    headers = b"NATS/1.0\r\nNats-Msg-Id: " + bad + b"\r\n\r\n"
    assert await made.publish("s", b"1", headers) == stored(1)
    wrong = await made.publish("s", b"2", block("Nats-Expected-Last-Msg-Id: x"))
    assert isinstance(wrong, dict)
    assert wrong["error"]["err_code"] == 10070
    assert await made.publish("s", b"2", headers) == duplicate(1)
    assert await made.publish("s", b"3", block("Nats-Msg-Id: y")) == stored(2)


async def test_expectations_hold_against_pushes_from_other_protocols(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"])
    expecting = block("Nats-Expected-Last-Subject-Sequence: 0")
    pushing = asyncio.create_task(made.push(stream, b"pushed", subject=b"s"))
    await asyncio.sleep(0)
    answer = await made.publish("s", b"x", expecting)
    await pushing
    assert answer == error(400, 10071, "wrong last sequence: 1")


async def test_a_rollup_replaces_earlier_messages(made: Streaming) -> None:
    stream = await made.create("s", subjects=["p.>"], allow_rollup_hdrs=True)
    for number in range(4):
        await made.publish(f"p.{number % 2}", b"%d" % number)
    answer = await made.publish("p.0", b"x", block("Nats-Rollup: bogus"))
    assert answer == error(500, 10111, 'rollup value invalid: "bogus"')
    assert await made.publish("p.0", b"sum", block("Nats-Rollup: sub")) == stored(5)
    assert await payloads(stream) == [b"1", b"3", b"sum"]
    assert await made.publish("p.1", b"all", block("Nats-Rollup: all")) == stored(6)
    assert await payloads(stream) == [b"all"]
    assert (stream.first_seq, stream.messages) == (6, 1)
    await made.streams.update(replace(stream.config, allow_rollup_hdrs=False))
    answer = await made.publish("p.0", b"x", block("Nats-Rollup: sub"))
    assert answer == error(500, 10111, "rollup not permitted")


async def test_pipelined_rollups_count_bytes_once(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"], allow_rollup_hdrs=True)
    publisher = publisher_of(made, b"s")
    rolled = block("Nats-Rollup: all")
    run = Publishes([b"s"] * 6, [b""] * 5 + [b"r"], [b"", b"", *[rolled] * 4], [b"x"] * 6)
    publisher.publish(run, lambda: None)
    await answered(made, 1)
    assert stream.messages == 1
    assert stream.size_bytes == 30 + 1 + 1 + 4 + len(rolled)


@pytest.mark.parametrize("ttl", ["0", "-1", "x", "999ms", "1"])
async def test_a_message_may_have_a_ttl(made: Streaming, ttl: str) -> None:
    await made.create("s", subjects=["s"], allow_msg_ttl=True)
    answer = await made.publish("s", b"x", block(f"Nats-TTL: {ttl}"))
    bad = error(400, 10165, "invalid per-message TTL")
    assert answer == (stored(1) if ttl == "1" else bad)


async def test_runs_are_stored_in_the_order_of_their_arrival(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"])
    publisher, taken = publisher_of(made, b"s"), list[int]()
    sent = 0
    for number in range(20):
        headers = [block(f"Nats-Msg-Id: {number}")] * 2 if number % 3 == 0 else None
        texts = [b"%d" % number, b"%d'" % number]
        run = Publishes([b"s"] * 2, [b"", b"r%d" % number], headers, texts)
        if not publisher.publish(run, lambda number=number: taken.append(number)):  # type: ignore[misc]
            sent += 1
    await answered(made, 20)
    assert len(taken) == sent
    assert taken == sorted(taken)
    expected = [
        text
        for number in range(20)
        for text in ([b"%d" % number] + ([b"%d'" % number] if number % 3 else []))
    ]
    assert await payloads(stream) == expected


async def test_a_full_queue_makes_publishers_wait_and_refuses_nothing(world: World) -> None:
    world.log_settings = dataclasses.replace(world.log_settings, pending_bytes_max=100)
    made = await stream_all(world)
    stream = await made.create("s", subjects=["s.>"])
    publisher, waited = publisher_of(made, b"s.x"), list[bool]()
    for number in range(30):
        subjects = [b"s." + b"long" * 5] * 2
        run = Publishes(subjects, [b"", b"r%d" % number], None, [b"x" * 10, b"%d" % number])
        publisher.publish(run, partial(waited.append, True))
    await answered(made, 30)
    assert waited
    assert [text for text in await payloads(stream) if text != b"x" * 10] == [
        b"%d" % number for number in range(30)
    ]
    assert all("error" not in answer for answer in made.answers.values())
    made.close()


@pytest.mark.parametrize(
    "subject", [b"s..x", b"s.", b"s. ", b"s.\xff", b"s.\x01", b"s." + b"x" * 5000]
)
async def test_an_invalid_subject_has_no_publisher(made: Streaming, subject: bytes) -> None:
    await made.create("s", subjects=["s.>"])
    assert made.streams.route(subject) is None


async def test_rows_of_a_typed_topic_are_json_and_an_invalid_one_affects_no_other(
    made: Streaming,
) -> None:
    fields = schema.schema([schema.field("n:int32"), schema.field("t:string")])
    await made.served.create(TopicSpec(names.topic("typed"), fields))
    stream = made.streams.get("typed")
    assert stream is not None
    publisher = publisher_of(made, b"typed")
    texts = [
        b'{"t": "one", "n":1}',
        b'{"n":"no"}',
        b"not json",
        b'{"n":2,"t":"a"},{"n":3,"t":"b"}',
        b"",
        b'{"n":4,"t":"four"}',
        b'{"n":5,"t":"five","n":6}',
    ]
    replies = [b"r%d" % number for number in range(len(texts))]
    publisher.publish(Publishes([b"typed"] * len(texts), replies, None, texts), lambda: None)
    await answered(made, len(texts))
    assert made.answers[b"r0"] == stored(1, "typed")
    assert made.answers[b"r5"] == stored(2, "typed")
    for reply in (b"r1", b"r2", b"r3", b"r4", b"r6"):
        assert "error" in made.answers[reply]
    rows = await stream.read(0, 10)
    assert isinstance(rows, Rows)
    assert list(rows.payloads) == [b'{"n":1,"t":"one"}', b'{"n":4,"t":"four"}']
    assert list(rows.subjects) == [b"typed", b"typed"]


async def test_messages_without_interest_get_a_sequence_and_are_deleted(
    made: Streaming,
) -> None:
    stream = await made.create("s", subjects=["s.>"], retention="interest")
    stream.require_interest(lambda subject: subject == b"s.wanted")
    assert await made.publish("s.other", b"1") == stored(1)
    assert await made.publish("s.wanted", b"2") == stored(2)
    assert await payloads(stream) == [b"2"]
    assert stream.size_bytes == 30 + 8 + 1


async def test_subjects_are_rewritten_before_they_are_stored(made: Streaming) -> None:
    transform = {"src": "a.*", "dest": "b.$1.c"}
    stream = await made.create("s", subjects=["a.>"], subject_transform=transform)
    await made.publish("a.x", b"mapped")
    await made.publish("a.x.y", b"as it is")
    rows = await stream.read(0, 10)
    assert isinstance(rows, Rows)
    assert list(rows.subjects) == [b"b.x.c", b"a.x.y"]


@pytest.mark.feature("T15")
@pytest.mark.parametrize("headers", [b"", block("Nats-Msg-Id: one")])
async def test_a_publish_waits_while_the_uploader_is_behind(
    made: Streaming, headers: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s"])
    (log,) = made.served.broker.logs
    monkeypatch.setattr(log, "pressure_seconds", 0.05)
    begun = asyncio.get_running_loop().time()
    for number in range(1, 4):
        assert await made.publish("s", b"x", headers if number == 1 else b"") == stored(number)
    assert asyncio.get_running_loop().time() - begun >= 0.15
    assert stream.messages == 3


@pytest.mark.feature("T31")
@pytest.mark.parametrize("headers", [None, [block("Nats-Msg-Id: one")]])
async def test_a_publish_is_refused_when_the_queue_is_full_and_the_policy_says_so(
    world: World, headers: list[bytes] | None
) -> None:
    world.log_settings = dataclasses.replace(
        world.log_settings, pending_bytes_max=1000, when_full=WhenFull.REFUSE
    )
    made = await stream_all(world)
    await made.create("s", subjects=["s"])
    publisher = publisher_of(made, b"s")
    publisher.publish(Publishes([b"s"], [b"first"], None, [b"x" * 900]), lambda: None)
    publisher.publish(Publishes([b"s"], [b"second"], headers, [b"x" * 900]), lambda: None)
    await answered(made, 2)
    assert made.answers[b"first"] == stored(1)
    refused = made.answers[b"second"]["error"]
    assert isinstance(refused, dict)
    assert "1000" in refused["description"]
    assert await made.publish("s", b"x", headers[0] if headers else b"") == stored(2)
    made.close()
