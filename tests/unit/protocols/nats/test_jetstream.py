"""The targets of subjects."""

from __future__ import annotations

from penstock.protocols.nats.jetstream.publish import StreamTarget
from tests.broker.jetstream import Streaming
from tests.broker.storage import World


async def test_every_subject_has_the_right_target(world: World) -> None:
    async with Streaming(world) as made:
        await made.asker.create("s", subjects=["s.>"])
        resolve = made.jetstream._resolve
        assert resolve(b"$JS.API.STREAM.NAMES") is made.jetstream.api
        assert resolve(b"$JS.API.CONSUMER.MSG.NEXT.s.c") is made.jetstream._pulls
        assert resolve(b"$JS.FC.s.c.x") is made.jetstream._flow
        stored = resolve(b"s.x")
        assert isinstance(stored, StreamTarget)
        assert resolve(b"s.y") is stored
        assert resolve(b"other") is None


async def test_a_deleted_stream_has_no_target(world: World) -> None:
    async with Streaming(world) as made:
        for _ in range(3):
            await made.asker.create("s", subjects=["s"])
            assert (await made.asker.ask(b"s", b"x")).document["seq"] == 1
            await made.asker.api("STREAM.DELETE.s")
            assert (await made.asker.ask(b"s", b"x")).headers.startswith(b"NATS/1.0 503")
        assert not made.jetstream._targets


async def test_info_announces_jetstream(world: World) -> None:
    async with Streaming(world) as made:
        talk = await made.server.open()
        assert talk.greeting["jetstream"] is True
        await made.jetstream.close()
        await made.jetstream.close()
