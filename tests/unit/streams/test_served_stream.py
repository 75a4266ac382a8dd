"""The parts that work for a stream change with its configuration."""

import msgspec

from penstock.streams.served_stream import ServedStream
from penstock.wire.jetstream.stream_config import StreamConfig, normalised
from tests.broker.streams import Streaming, block, start_again
from tests.unit.streams.sourcing import origin


def _served(made: Streaming, name: str) -> ServedStream:
    return made.streams._served[name]


async def _update(made: Streaming, name: str, **config: object) -> None:
    await made.streams.update(normalised(msgspec.convert({"name": name, **config}, StreamConfig)))


async def test_a_mirror_that_is_promoted_may_have_sources_instead(made: Streaming) -> None:
    await origin(made)
    await made.create("m", mirror={"name": "o"})
    served = _served(made, "m")
    assert (served.mirror is not None, served.sources) == (True, None)
    await _update(made, "m", sources=[{"name": "o"}])
    assert (served.mirror, served.sources is not None) == (None, True)
    await _update(made, "m", subjects=["m"], republish={"src": ">", "dest": "again.>"})
    assert (served.sources, served.republisher is not None) == (None, True)


async def test_message_ids_of_the_recent_past_are_known_after_a_restart(made: Streaming) -> None:
    await made.create("s", subjects=["s"], duplicate_window=10**9)
    await made.publish("s", b"1", block("Nats-Msg-Id: a"))
    made, _ = await start_again(made, "s")
    answer = await made.publish("s", b"1", block("Nats-Msg-Id: a"))
    assert answer == {"stream": "s", "seq": 1, "duplicate": True}
    made.close()
