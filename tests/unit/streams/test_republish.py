"""Stored messages are republished under mapped subjects, with facts about them as headers."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from penstock.wire import headers
from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.stream_config import RePublish
from tests.broker.storage import World
from tests.broker.streams import Streaming, stream_all

Sent = tuple[bytes, bytes, bytes, bytes]


class Listening:
    """Streams, and what they published again."""

    def __init__(self, made: Streaming) -> None:
        self.made, self.sent = made, made.sent

    def told(self, place: int, *names: bytes) -> list[bytes | None]:
        return [headers.get(self.sent[place][2], name) for name in names]


@pytest_asyncio.fixture
async def listening(world: World) -> AsyncIterator[Listening]:
    made = await stream_all(world)
    yield Listening(made)
    made.close()


async def test_a_stored_message_is_republished_under_its_mapped_subject(
    listening: Listening,
) -> None:
    made = listening.made
    await made.create("s", subjects=["s.>"], republish={"src": "s.*", "dest": "copy.$1"})
    await made.publish("s.a", b"1", b"NATS/1.0\r\nX: y\r\n\r\n")
    await made.publish("s.a.b", b"not matched")
    await made.publish("s.a", b"2")
    assert [(subject, reply, body) for subject, reply, _, body in listening.sent] == [
        (b"copy.a", b"", b"1"),
        (b"copy.a", b"", b"2"),
    ]
    fields = (b"Nats-Stream", b"Nats-Subject", b"Nats-Sequence", b"Nats-Last-Sequence", b"X")
    assert listening.told(0, *fields) == [b"s", b"s.a", b"1", b"0", b"y"]
    assert listening.told(1, *fields) == [b"s", b"s.a", b"3", b"1", None]
    assert listening.told(0, b"Nats-Time-Stamp") != [None]


async def test_payloads_may_be_left_out(listening: Listening) -> None:
    made = listening.made
    config = {"src": ">", "dest": "copy.>", "headers_only": True}
    await made.create("s", subjects=["s"], republish=config)
    await made.publish("s", b"12345")
    assert listening.sent[0][0] == b"copy.s"
    assert listening.sent[0][3] == b""
    assert listening.told(0, b"Nats-Msg-Size") == [b"5"]


async def test_republishing_starts_and_stops_with_the_configuration(listening: Listening) -> None:
    made = listening.made
    stream = await made.create("s", subjects=["s"])
    await made.publish("s", b"before")
    await made.streams.update(replace(stream.config, republish=RePublish(">", "copy.>")))
    await made.publish("s", b"while")
    await made.streams.update(replace(stream.config, republish=None))
    await made.publish("s", b"after")
    assert [body for *_, body in listening.sent] == [b"while"]


async def test_a_stream_does_not_store_what_it_republishes(listening: Listening) -> None:
    with pytest.raises(ApiError, match="cycle"):
        await listening.made.create("s", subjects=["s.>"], republish={"src": ">", "dest": "s.>"})
