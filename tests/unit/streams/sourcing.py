"""Streams with sources over a broker without protocols."""

from __future__ import annotations

from penstock.streams.rows import Rows, joined
from penstock.streams.sources import SourceCopy
from penstock.streams.stream import Stream
from penstock.wire.jetstream.sourced import origin_of
from tests.broker.streams import Streaming
from tests.eventually import eventually


async def origin(made: Streaming, name: str = "o", count: int = 6, **config: object) -> Stream:
    """A stream of the subjects `name.>` with numbered messages in turn to two of them."""
    stream = await made.create(name, subjects=[f"{name}.>"], **config)
    for number in range(count):
        await made.publish(f"{name}.{number % 2}", b"%d" % number)
    return stream


async def copied(stream: Stream, last: int) -> Rows:
    """All that is in a stream once it has come so far."""

    async def there() -> bool:
        return stream.next_offset >= last

    await eventually(there)
    return await everything(stream)


async def everything(stream: Stream) -> Rows:
    parts = [rows async for rows in stream.rows_from(0, 1000)]
    return joined(parts)


def origins(rows: Rows) -> list[tuple[str, int]]:
    """Stream and sequence that copies name; nothing for messages that are no copies."""
    found = [origin_of(block) for block in rows.headers or ()]
    return [(one.key.split(" ")[0], one.sequence) for one in found if one is not None]


def the_source(made: Streaming, name: str) -> SourceCopy:
    (copy,) = made.streams.sources(name)
    return copy


async def at_rest(made: Streaming, name: str) -> None:
    """Wait until all sources of a stream have copied what there is."""

    async def done() -> bool:
        copies = made.streams.sources(name)
        return all(
            copy.origin is not None and copy.settled_seq >= copy.origin.next_offset
            for copy in copies
        )

    await eventually(done)
