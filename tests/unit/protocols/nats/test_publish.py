"""Publishes into streams over real sockets: answered when durable, with bounded memory."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import msgspec
import pytest

from penstock.metadata import Put
from penstock.model.errors import LogReadOnly
from penstock.model.names import TopicName
from penstock.model.resources import Topic, TopicSpec
from penstock.protocols.nats.clients import NatsLimits
from penstock.topics import Topics
from tests.broker.jetstream import Streaming
from tests.broker.storage import World
from tests.eventually import eventually


@pytest.mark.feature("P03")
async def test_a_run_of_publishes_is_answered_in_order(world: World) -> None:
    async with Streaming(world) as made:
        await made.asker.create("s", subjects=["s.>"])
        for number in range(100):
            made.asker.send(b"s.%d" % number, b"x")
        told = [(await made.asker.receive()).document for _ in range(100)]
        assert told == [{"stream": "s", "seq": number + 1} for number in range(100)]


@pytest.mark.feature("P03")
async def test_a_publish_reaches_subscribers_and_the_stream(world: World) -> None:
    async with Streaming(world) as made:
        await made.asker.create("s", subjects=["s"])
        talk = await made.server.connect()
        await talk.answer(b"SUB s 9\r\nSUB r 8\r\n")
        got = await talk.answer(b"PUB s r 1\r\nx\r\n")
        while b'"seq"' not in got:
            got += await talk.answer()
        assert got == b'MSG s 9 r 1\r\nx\r\nMSG r 8 22\r\n{"stream":"s","seq":1}\r\n'


async def test_a_subject_that_no_stream_has_gets_no_responders(world: World) -> None:
    async with Streaming(world) as made:
        await made.asker.create("s", subjects=["s.>"])
        for subject in (b"other", b"s", b"s..x", b"s.\xff"):
            told = await made.asker.ask(subject, b"x")
            assert told.headers.startswith(b"NATS/1.0 503")
        assert (await made.asker.ask(b"s.x")).document["seq"] == 1


async def test_a_client_whose_publishes_wait_is_not_read_and_loses_nothing(world: World) -> None:
    world.log_settings = dataclasses.replace(world.log_settings, pending_bytes_max=2000)
    async with Streaming(world, NatsLimits(payload_bytes=1000)) as made:
        await made.asker.create("s", subjects=["s"])
        held: list[int] = []
        (client,) = made.server.server.clients.open.values()
        hold = client.hold

        def counted() -> None:
            held.append(1)
            hold()

        client.hold = counted  # type: ignore[method-assign]
        for number in range(300):
            made.asker.send(b"s", b"%0500d" % number)
        for number in range(300):
            assert (await made.asker.receive()).document == {"stream": "s", "seq": number + 1}
        assert held
        stream = made.jetstream.streams.get("s")
        assert stream is not None
        texts = [text async for rows in stream.rows_from(0, 1000) for text in rows.payloads]
        assert texts == [b"%0500d" % number for number in range(300)]


async def test_invalid_input_of_one_client_does_not_stop_other_publishes(world: World) -> None:
    async with Streaming(world) as made:
        await made.asker.create("s", subjects=["s"], allow_rollup_hdrs=True, allow_msg_ttl=True)
        bad = await made.server.connect()
        for field in (b"Nats-Msg-Id: \xff\xfe", b"Nats-TTL: " + b"9" * 5000, b"Nats-Rollup: \xff"):
            block = b"NATS/1.0\r\n" + field + b"\r\nNats-Expected-Last-Msg-Id: \xfe\r\n\r\n"
            sizes = b"%d %d" % (len(block), len(block))
            bad.send(b"HPUB s nowhere " + sizes + b"\r\n" + block + b"\r\n")
        bad.send(b"PUB s 9999999\r\n")
        await bad.closed()
        told = (await made.asker.ask(b"s", b"x")).payload
        assert msgspec.json.decode(told)["stream"] == "s"
        assert b'"error"' not in told


class Making:
    """Creates the stream `s` when the gate is opened."""

    def __init__(self, made: Streaming, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made, self.gate = made, asyncio.Event()
        create = made.served.topics.create_topic

        async def slowly(spec: TopicSpec, beside: Sequence[Put]) -> Topic:
            await self.gate.wait()
            return await create(spec, beside)

        monkeypatch.setattr(made.served.topics, "create_topic", slowly)

    async def begin(self, name: str = "s", **more: object) -> None:
        config = msgspec.json.encode({"name": name, "subjects": ["s.>"], **more})
        self.made.asker.send(b"$JS.API.STREAM.CREATE." + name.encode(), config)

        async def begun() -> bool:
            return self.made.jetstream.streams.coming(b"s.0") is not None

        await eventually(begun)


async def test_publishes_to_an_opening_stream_wait_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Streaming(world) as made:
        making, asker = Making(made, monkeypatch), await made.connect()
        subscriber = await made.server.connect()
        await subscriber.answer(b"SUB s.> 9\r\n")
        await making.begin()
        for number in range(3):
            asker.send(b"s.%d" % number, b"%d" % number)
        await subscriber.expect(b"".join(b"MSG s.%d 9 _I 1\r\n%d\r\n" % (n, n) for n in range(3)))
        making.gate.set()
        told = [(await asker.receive()).document for _ in range(4)]
        acks = [document for document in told if "seq" in document]
        assert acks == [{"stream": "s", "seq": number + 1} for number in range(3)]
        assert list((await made.stream("s").read_offsets([0, 1, 2])).payloads) == [b"0", b"1", b"2"]
        assert await subscriber.answer() == b""


async def test_a_publish_behind_the_making_of_its_stream_waits_for_its_first_sequence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Streaming(world) as made:
        making, asker = Making(made, monkeypatch), await made.connect()
        await making.begin(first_seq=7)
        await asker.talk.answer(b"PUB s.0 _I 1\r\nx\r\n")
        making.gate.set()
        # The inbox of both clients is the same.
        told = [(await asker.receive()).document for _ in range(2)]
        assert {"stream": "s", "seq": 7} in told


async def test_publishes_to_a_stream_that_fails_to_open_receive_no_responders(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Streaming(world) as made:
        making, asker = Making(made, monkeypatch), await made.connect()
        await making.begin()
        asker.send(b"s.1", b"x")
        await (await made.server.connect()).answer()
        monkeypatch.setattr(Topics, "_open_topic", _fail)
        making.gate.set()
        told = [await asker.receive(), await asker.receive()]
        assert [one.headers[:12] for one in told if one.headers] == [b"NATS/1.0 503"]
        (refused,) = [one.document for one in told if not one.headers]
        assert refused["error"]["err_code"] == 10049


async def _fail(self: Topics, name: TopicName) -> None:
    raise LogReadOnly(str(name), "the disk is broken")


async def test_a_rollup_to_a_wildcard_replaces_the_matching_messages(world: World) -> None:
    async with Streaming(world) as made:
        limits = {"allow_rollup_hdrs": True, "max_msgs_per_subject": 1}
        await made.asker.create("s", subjects=["s.>"], **limits)
        for subject in (b"s.a.1", b"s.a.2", b"s.b"):
            await made.asker.ask(subject, b"x")
        rollup = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"
        told = await made.asker.ask(b"s.a.*", b"", rollup)
        assert told.document == {"stream": "s", "seq": 4}
        stream = made.stream("s")
        await made.asker.ask(b"s.a.1", b"again")
        left = await stream.read_offsets(range(5))
        assert list(left.subjects) == [b"s.b", b"s.a.*", b"s.a.1"]
        assert (await made.asker.ask(b"s.a.*", b"x")).document == {"stream": "s", "seq": 6}
        assert stream.messages == 3


async def test_a_batch_is_dropped_with_the_connection_that_began_it(world: World) -> None:
    async with Streaming(world) as made:
        await made.asker.create("s", subjects=["s"], allow_atomic=True)
        other = await made.connect()
        block = b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: %d\r\n%b\r\n"
        first, staging = block % (1, b""), made.jetstream.streams.open_batches
        other.talk.send(b"HPUB s %d %d\r\n%b\r\n" % (len(first), len(first), first))

        async def begun() -> bool:
            return staging.batches == 1

        await eventually(begun)
        await other.talk.end()

        async def given_up() -> bool:
            return staging.batches == 0

        await eventually(given_up)
        last = block % (2, b"Nats-Batch-Commit: 1\r\n")
        told = (await made.asker.ask(b"s", b"2", last)).document
        assert told["error"]["err_code"] == 10176
