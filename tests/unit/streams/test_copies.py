"""Copies are stored a batch at a time, by the rules of the target stream."""

import pytest

from penstock.model.errors import PenstockError
from penstock.streams.copies import Copied, Copies
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.source_positions import Position, SourcePositions
from penstock.streams.stream import Stream
from tests.broker.streams import Streaming, appended_runs, block
from tests.eventually import eventually
from tests.unit.streams.sourcing import everything


class Taker:
    """A stream that takes copies."""

    def __init__(self, made: Streaming, stream: Stream, positions: SourcePositions) -> None:
        self.stream, self.positions = stream, positions
        window_us = stream.config.duplicate_window // 1000
        self.window = DuplicateWindow(window_us, made.served.broker.world.clock.now_us)
        self.copies = Copies(stream, self.window, positions)

    async def store(self, *messages: tuple[bytes, str], first: int = 1) -> None:
        """Messages with a subject, and a header field if it is not empty."""
        blocks = [
            block(*filter(None, [field]), f"Nats-Stream-Source: o {seq} > > x abcdefgh")
            for seq, (_, field) in enumerate(messages, first)
        ]
        sequences = range(first, first + len(messages))
        payloads = [b"%d" % seq for seq in sequences]
        subjects = [subject for subject, _ in messages]
        await self.copies.store(Copied("o > >", "abcdefgh", subjects, blocks, payloads, sequences))

    async def payloads(self) -> list[bytes]:
        return list((await everything(self.stream)).payloads)


async def _taker(made: Streaming, **config: object) -> Taker:
    stream = await made.create("s", **config)
    positions = SourcePositions(stream)
    await positions.load(())
    return Taker(made, stream, positions)


async def test_a_batch_is_one_append(made: Streaming, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = await _taker(made, duplicate_window=10**9)
    runs = appended_runs(taker.stream, monkeypatch)
    await taker.store((b"a", ""), (b"b", "Nats-Msg-Id: 1"), (b"c", "X: y"))
    assert runs == [3]
    assert taker.positions.get("o > >") == Position("abcdefgh", 3, 3)


async def test_an_id_is_stored_once_within_the_window_also_within_a_batch(made: Streaming) -> None:
    taker = await _taker(made, duplicate_window=10**9)
    one, two = (b"a", "Nats-Msg-Id: 1"), (b"a", "Nats-Msg-Id: 2")
    await taker.store(one, two, one)
    await taker.store(two, (b"a", ""), first=4)
    await taker.store(one, two, first=6)
    assert await taker.payloads() == [b"1", b"2", b"5"]
    assert taker.positions.get("o > >") == Position("abcdefgh", 7, 7)
    taker.window.window_us = 0
    await taker.store(one, first=8)
    assert (await taker.payloads())[-1] == b"8"


async def test_a_roll_up_replaces_stored_messages_and_earlier_ones_of_its_batch(
    made: Streaming,
) -> None:
    taker = await _taker(made, allow_rollup_hdrs=True)
    roll_up = "Nats-Rollup: sub"
    await taker.store((b"a", ""), (b"b", ""))
    await taker.store((b"a", ""), (b"a", roll_up), (b"a", ""), (b"c", roll_up), first=3)
    assert await taker.payloads() == [b"2", b"4", b"5", b"6"]
    await taker.store((b"d", ""), (b"d", "Nats-Rollup: all"), (b"d", ""), first=7)
    assert await taker.payloads() == [b"8", b"9"]


async def test_the_end_of_a_schedule_deletes_it_where_roll_ups_are_allowed(
    made: Streaming,
) -> None:
    taker = await _taker(made, allow_rollup_hdrs=True)
    ends = "Nats-Scheduler: a\r\nNats-Schedule-Next: purge"
    await taker.store((b"a", "Nats-Schedule: @every 1h"), (b"b", ends))
    assert await taker.payloads() == [b"2"]


async def test_header_fields_without_permission_are_stored_and_have_no_effect(
    made: Streaming,
) -> None:
    taker = await _taker(made)
    await taker.store((b"a", ""), (b"a", "Nats-Rollup: sub"), (b"a", "Nats-TTL: 1s"))
    made.served.broker.world.clock.pass_seconds(5)
    assert await taker.payloads() == [b"1", b"2", b"3"]


async def test_a_copied_ttl_takes_effect_where_the_stream_allows_it(made: Streaming) -> None:
    taker = await _taker(made, allow_msg_ttl=True)
    await taker.store((b"a", ""), (b"a", "Nats-TTL: 1s"), (b"a", "Nats-TTL: never"))
    made.served.broker.world.clock.pass_seconds(2)
    made.streams._served[taker.stream.name].expiry.start()

    async def expired() -> bool:
        return await taker.payloads() == [b"1", b"3"]

    await eventually(expired)


async def test_as_many_copies_are_stored_as_the_limits_allow(made: Streaming) -> None:
    taker = await _taker(made, max_msgs=5, discard="new")
    with pytest.raises(PenstockError, match="maximum messages exceeded"):
        await taker.store(*[(b"a", "")] * 9)
    assert await taker.payloads() == [b"1", b"2", b"3", b"4", b"5"]
    assert taker.positions.get("o > >") == Position("abcdefgh", 5, 5)


async def test_a_copy_that_is_too_large_with_its_header_is_refused(made: Streaming) -> None:
    taker = await _taker(made, max_msg_size=80)
    with pytest.raises(PenstockError, match="message size exceeds maximum allowed"):
        await taker.store((b"a", ""), (b"a", "X: " + "y" * 80), (b"a", ""))
    assert await taker.payloads() == [b"1"]


async def test_copies_without_interest_get_sequences_and_are_deleted(
    made: Streaming,
) -> None:
    taker = await _taker(made, retention="interest")
    taker.stream.require_interest(lambda subject: subject == b"a")
    await taker.store((b"a", ""), (b"b", ""), (b"a", ""))
    assert await taker.payloads() == [b"1", b"3"]
    assert taker.positions.get("o > >") == Position("abcdefgh", 3, 3)
