"""Sources: the selection, the start, and what the origin retains for them.

Every selected message is copied once and in order, also after crashes and disk errors.
"""

from __future__ import annotations

import msgspec
import pytest

from penstock.model.times import time_text_us
from penstock.streams import sources
from penstock.streams.source_positions import Position
from penstock.wire.jetstream.stream_config import StreamConfig, normalised
from tests.broker.streams import Streaming, fail_once, start_again
from tests.eventually import eventually
from tests.unit.streams.sourcing import (
    at_rest,
    copied,
    everything,
    origin,
    origins,
    the_source,
)


async def test_filters_select_and_the_first_matching_transform_rewrites(made: Streaming) -> None:
    await origin(made)
    some = await made.create("some", sources=[{"name": "o", "filter_subject": "o.1"}])
    transforms = [{"src": "o.0", "dest": "zero"}, {"src": "o.1", "dest": ""}]
    other = await made.create(
        "other",
        sources=[{"name": "o", "subject_transforms": transforms}],
        subject_transform={"src": "zero", "dest": "none"},
    )
    assert origins(await copied(some, 3)) == [("o", 2), ("o", 4), ("o", 6)]
    rows = await copied(other, 6)
    assert rows.subjects == [b"none", b"o.1"] * 3
    assert rows.headers is not None
    assert b"Nats-Stream-Source: o 1 o.0\x0co.1 zero\x0c> o.0 " in rows.headers[0]


async def test_copying_begins_where_the_configuration_says(made: Streaming) -> None:
    stream = await origin(made)
    late = await made.create("late", sources=[{"name": "o", "opt_start_seq": 5}])
    assert origins(await copied(late, 2)) == [("o", 5), ("o", 6)]
    made.served.broker.world.clock.us += 1_000_000
    now = time_text_us(made.served.broker.world.clock.now_us())
    timed = await made.create("timed", sources=[{"name": "o", "opt_start_time": now}])
    await at_rest(made, "timed")
    await made.publish("o.1", b"new")
    assert origins(await copied(timed, 1)) == [("o", 7)]
    assert stream.next_offset == 7


async def test_a_recreated_origin_is_copied_from_its_start(made: Streaming) -> None:
    await origin(made)
    stream = await made.create("s", sources=[{"name": "o"}])
    await copied(stream, 6)
    await made.streams.delete("o")
    copy = the_source(made, "s")
    assert (copy.origin, copy.lag, copy.last_seq) == (None, 0, 6)
    made.served.broker.world.clock.us += 1_000
    await origin(made, count=2)
    rows = await copied(stream, 8)
    assert origins(rows)[6:] == [("o", 1), ("o", 2)]
    made, stream = await start_again(made, "s")
    await made.publish("o.1", b"after")
    await at_rest(made, "s")
    assert origins(await everything(stream))[6:] == [("o", 1), ("o", 2), ("o", 3)]
    made.close()


async def test_messages_that_are_not_selected_are_skipped_for_good(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SKIPPED_MAX", 4)
    await origin(made, count=20)
    await made.create("s", sources=[{"name": "o", "filter_subject": "o.none"}])
    await at_rest(made, "s")
    made, stream = await start_again(made, "s")
    copy = the_source(made, "s")

    async def begun() -> bool:
        return copy.active_ns >= 0

    await eventually(begun)
    assert copy.settled_seq == 20
    assert (stream.next_offset, copy.last_seq, copy.lag) == (0, 0, 0)
    made.close()


async def test_a_work_queue_releases_messages_once_their_copies_are_durable(
    made: Streaming,
) -> None:
    queue = await origin(made, "w", 4, retention="workqueue")
    released: list[int] = []
    queue.copied.add(released.extend)
    stream = await made.create("s", sources=[{"name": "w", "filter_subject": "w.1"}])
    copy = the_source(made, "s")
    assert copy.needs(1)
    assert (copy.wants(b"w.1"), copy.wants(b"w.0")) == (True, False)
    await at_rest(made, "s")
    assert released == [2, 4]
    assert (copy.needs(4), copy.needs(5)) == (False, True)
    # What a crash kept from being released is released at the next start.
    made, stream = await start_again(made, "s")
    again = made.streams.get("w")
    assert again is not None
    released.clear()
    again.copied.add(released.extend)
    await at_rest(made, "s")
    assert (released, stream.next_offset) == ([2, 4], 2)
    made.close()


def test_the_protocol_of_positions_is_part_of_the_format() -> None:
    position = msgspec.msgpack.encode(Position("abcdefgh", 1, 2))
    assert position == b"\x93\xa8abcdefgh\x01\x02"


async def _update(made: Streaming, name: str, **config: object) -> None:
    await made.streams.update(normalised(msgspec.convert({"name": name, **config}, StreamConfig)))


async def test_every_source_is_copied_in_order_beside_what_is_published(made: Streaming) -> None:
    await origin(made, "o")
    await origin(made, "p")
    stream = await made.create("s", subjects=["s"], sources=[{"name": "o"}, {"name": "p"}])
    await made.publish("s", b"own")
    rows = await copied(stream, 13)
    assert rows.count == 13
    for name in "op":
        assert [seq for of, seq in origins(rows) if of == name] == [1, 2, 3, 4, 5, 6]


async def test_copying_continues_after_a_crash(made: Streaming) -> None:
    await origin(made)
    stream = await made.create("s", sources=[{"name": "o"}])
    await copied(stream, 6)
    made, stream = await start_again(made, "s")
    await made.publish("o.1", b"after")
    await at_rest(made, "s")
    assert origins(await everything(stream)) == [("o", seq) for seq in range(1, 8)]
    made.close()


async def test_copies_lost_to_a_disk_error_are_copied_again_once(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    await origin(made)
    stream = await made.create("s", sources=[{"name": "o"}])
    await copied(stream, 6)
    append = stream.opened.log.append

    def failing(run: object) -> object:
        monkeypatch.setattr(stream.opened.log, "append", append)
        fail_once(made, monkeypatch)
        return append(run)  # type: ignore[arg-type]

    monkeypatch.setattr(stream.opened.log, "append", failing)
    await made.publish("o.1", b"after")
    await copied(stream, 7)
    made, stream = await start_again(made, "s")
    await made.publish("o.1", b"last")
    await at_rest(made, "s")
    assert origins(await everything(stream)) == [("o", seq) for seq in range(1, 9)]
    made.close()


async def test_a_source_that_returns_continues_from_its_position(made: Streaming) -> None:
    await origin(made, "o")
    await origin(made, "p", 2)
    stream = await made.create("s", sources=[{"name": "o"}, {"name": "p"}])
    await copied(stream, 8)
    await _update(made, "s", sources=[{"name": "p"}])
    await made.publish("o.1", b"unseen")
    await made.publish("p.1", b"seen")
    await copied(stream, 9)
    await _update(made, "s", sources=[{"name": "o"}, {"name": "p"}])
    rows = await copied(stream, 10)
    await at_rest(made, "s")
    assert origins(rows)[8:] == [("p", 3), ("o", 7)]


async def test_sources_that_were_all_removed_are_found_again_by_their_copies(
    made: Streaming,
) -> None:
    await origin(made)
    stream = await made.create("s", sources=[{"name": "o"}])
    await copied(stream, 6)
    await _update(made, "s", subjects=["s"])
    assert made.streams.sources("s") == []
    await made.publish("s", b"own")
    await made.publish("o.1", b"unseen")
    made, stream = await start_again(made, "s")
    await _update(made, "s", subjects=["s"], sources=[{"name": "o"}])
    rows = await copied(stream, 8)
    assert origins(rows) == [("o", seq) for seq in range(1, 8)]
    made.close()


async def test_the_first_sequence_is_set_before_anything_is_copied(made: Streaming) -> None:
    await origin(made)
    stream = await made.create("s", sources=[{"name": "o"}], first_seq=100)
    rows = await copied(stream, 105)
    assert list(rows.offsets) == list(range(99, 105))


async def test_a_stream_that_is_deleted_is_not_copied_into_any_more(made: Streaming) -> None:
    stream = await origin(made)
    await made.create("s", sources=[{"name": "o"}])
    await at_rest(made, "s")
    assert [copy.source.name for copy in stream.copies()] == ["o"]  # type: ignore[attr-defined]
    await made.streams.delete("s")
    assert list(stream.copies()) == []
    await made.publish("o.1", b"later")


async def test_a_sealed_stream_copies_nothing_more(made: Streaming) -> None:
    await origin(made)
    stream = await made.create("s", sources=[{"name": "o"}])
    await copied(stream, 6)
    await _update(made, "s", sources=[{"name": "o"}], sealed=True)
    await made.publish("o.1", b"later")
    (copy,) = made.streams.sources("s")

    async def behind() -> bool:
        return copy.lag == 1

    await eventually(behind)
    assert stream.next_offset == 6
