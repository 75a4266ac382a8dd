"""The positions of sources correspond exactly to the stored copies."""

import pytest

from penstock.model.errors import FormatError, VersionUnknown
from penstock.model.run import Run
from penstock.streams import source_positions
from penstock.streams.source_positions import (
    KIND,
    Checkpoint,
    Position,
    SourcePositions,
    decode,
    encode,
)
from penstock.streams.stream import Stream
from tests.broker.streams import Streaming, block, start_again

AT_3 = Position("abcdefgh", 3, 3)
FROM_O = block("Nats-Stream-Source: o 3 > > o.1 abcdefgh")
FROM_P = block("Nats-Stream-Source: p 7 > > p.1 bbbbbbbb")


async def _append(stream: Stream, *blocks: bytes) -> None:
    """Messages without a checkpoint."""
    payloads = [b"x"] * len(blocks)
    await stream.opened.log.append(Run(b"s", payloads, list(blocks), stream.partition.id))


async def _advance(stream: Stream, positions: SourcePositions, key: str, at: Position) -> None:
    stored = stream.opened.log.append(Run(b"s", [b"x"], [FROM_O], stream.partition.id))
    positions.advance(key, at, stored)
    await stored


async def _loaded(stream: Stream, *keys: str) -> SourcePositions:
    positions = SourcePositions(stream)
    await positions.load(keys)
    return positions


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    checkpoint = Checkpoint(9, {"o > >": AT_3})
    assert encode(checkpoint) == (
        b"\x93\xa7sources\x01\x92\x09\x81\xa5o > >\x93\xa8abcdefgh\x03\x03"
    )
    assert decode(1, [[9, {"o > >": ["abcdefgh", 3, 3]}]]) == checkpoint
    with pytest.raises(VersionUnknown):
        decode(2, [])
    with pytest.raises(FormatError):
        decode(1, [["nine"]])


async def test_positions_survive_a_crash_although_the_copies_are_purged(
    made: Streaming,
) -> None:
    stream = await made.create("s")
    positions = await _loaded(stream)
    assert positions.get("o > >") is None
    await _advance(stream, positions, "o > >", AT_3)
    await stream.purge(stream.next_offset)
    made, stream = await start_again(made, "s")
    assert (await _loaded(stream)).get("o > >") == AT_3


async def test_copies_whose_checkpoint_was_lost_are_found_by_their_headers(
    made: Streaming,
) -> None:
    stream = await made.create("s")
    positions = await _loaded(stream)
    await _advance(stream, positions, "o > >", Position("abcdefgh", 1, 1))
    await _append(stream, b"", FROM_O, FROM_P, b"")
    made, stream = await start_again(made, "s")
    found = await _loaded(stream)
    assert (found.get("o > >"), found.get("p > >")) == (AT_3, Position("bbbbbbbb", 7, 7))


async def test_without_a_checkpoint_the_last_copies_are_searched_from_the_end_back(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_positions, "READ_AT_ONCE", 3)
    stream = await made.create("s")
    older = block("Nats-Stream-Source: o 1 > > o.1 abcdefgh")
    await _append(stream, FROM_P, older, b"", b"", FROM_O, b"", b"", b"", b"")
    found = await _loaded(stream, "o > >")
    assert (found.get("o > >"), found.get("p > >")) == (AT_3, None)
    found = await _loaded(stream, "o > >", "p > >")
    assert found.get("p > >") == Position("bbbbbbbb", 7, 7)
    monkeypatch.setattr(source_positions, "SEARCHED_MAX", 4)
    assert (await _loaded(stream, "o > >")).get("o > >") is None


async def test_a_position_discarded_with_its_copies_does_not_count(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s")
    positions = await _loaded(stream)
    await _advance(stream, positions, "o > >", AT_3)
    later = Position("abcdefgh", 9, 9)
    stored = stream.opened.log.append(Run(b"s", [b"x"], [FROM_O], stream.partition.id))
    positions.advance("o > >", later, stored)
    assert positions.get("o > >") == later
    stored.cancel()
    stream.count_again()
    assert positions.get("o > >") == AT_3


async def test_a_checkpoint_is_written_again_when_its_file_is_full(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s"])
    positions = await _loaded(stream)
    await _advance(stream, positions, "o > >", AT_3)
    before = stream.opened.log.state.settle_floor
    assert before is not None
    stream.opened.log.rotate()
    await made.publish("s")
    await made.publish("s")
    await stream.opened.log.writer.flush()
    active = stream.opened.log.writer.active
    assert active is not None
    assert stream.opened.log.state.settle_floor is not None
    assert stream.opened.log.state.settle_floor >= active.file.header.first_frame > before
    positions.forget()
    assert stream.opened.log.state.settle_floor is None


async def test_checkpoints_of_a_stream_without_sources_retain_no_files(made: Streaming) -> None:
    stream = await made.create("s")
    await _advance(stream, await _loaded(stream), "o > >", AT_3)
    made, stream = await start_again(made, "s")
    assert stream.opened.log.state.settle_floor is not None
    assert KIND in stream.opened.log.settlements.unused
    await stream.opened.log.settlements.read("consumer")
    stream.opened.log.settlements.keep("consumer", None)
    assert stream.opened.log.state.settle_floor is None


async def test_positions_of_sources_that_were_removed_are_kept_up_to_a_limit(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_positions, "POSITIONS_MAX", 2)
    stream = await made.create("s")
    positions = await _loaded(stream)
    for key in ("a > >", "b > >", "a > >", "c > >"):
        await _advance(stream, positions, key, AT_3)
    assert [positions.get(f"{name} > >") for name in "abc"] == [AT_3, None, AT_3]
