from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.formats import bodies
from penstock.formats.bodies import (
    ONCE_SECONDS,
    DeleteBody,
    LinkBody,
    LinkPart,
    ObjectRef,
    StartBody,
    Transaction,
)
from penstock.formats.frames import Codec, Flag, FrameHeader, Kind
from penstock.log.state import LogState
from penstock.model.units import Offset, PartitionId

P0, P1 = PartitionId(0), PartitionId(1)


def header(kind: Kind, partition: int, first: int, entries: int, stamp: int = 0) -> FrameHeader:
    return FrameHeader(1, 0, kind, Codec.NATIVE, 0, partition, 0, 0, 0, first, stamp, entries)


def append(state: LogState, count: int, partition: int = 0, stamp: int = 0) -> None:
    first = state.next(PartitionId(partition))
    state.apply(header(Kind.BATCH, partition, first, count, stamp), b"not read")


def delete(state: LogState, *offsets: int, start: int = 0, next_offset: int | None = None) -> None:
    bitmap = BitMap64(offsets).serialize() if offsets else b""
    to = state.next(P0) if next_offset is None else next_offset
    state.apply(header(Kind.DELETE, 0, to, 0), bodies.encode(DeleteBody(start, bitmap, "test")))


def restarted(state: LogState) -> LogState:
    data = bodies.encode(state.to_start())
    return LogState.from_start(bodies.decode(StartBody, data))


def facts(state: LogState) -> dict[str, Any]:
    partitions = sorted(state.nexts)
    return {
        "topic": state.topic,
        "last_timestamp": state.last_timestamp,
        "nexts": {p: state.next(PartitionId(p)) for p in partitions},
        "starts": state.starts(),
        "deleted": {p: set(state.bitmap(PartitionId(p)) or ()) for p in partitions},
        "live": {p: state.live_count(PartitionId(p)) for p in partitions},
        "transactions": state.transactions,
        "lineage": state.lineage,
    }


def test_a_partition_appears_with_its_first_message() -> None:
    state = LogState("t")
    assert (state.next(P1), state.start(P1), state.nexts) == (0, 0, {})
    append(state, 3, partition=1)
    assert (state.next(P1), state.live_count(P1), state.nexts) == (3, 3, {1: 3})


@pytest.mark.feature("T35")
def test_deleted_offsets_are_not_live_and_a_purge_forgets_those_before_it() -> None:
    state = LogState("t")
    append(state, 10)
    delete(state, 2, 3, 7)
    assert [state.next_live(P0, Offset(n)) for n in (1, 2, 3, 4, 7)] == [1, 4, 4, 4, 8]
    assert state.live_count(P0) == 7
    delete(state, start=4)
    assert (state.start(P0), state.live_count(P0)) == (4, 5)
    assert set(state.bitmap(P0) or ()) == {7}
    delete(state, start=8)
    assert (state.start(P0), state.live_count(P0), state.bitmap(P0)) == (8, 2, None)


@pytest.mark.feature("T35")
def test_a_start_offset_never_decreases() -> None:
    state = LogState("t")
    append(state, 10)
    delete(state, start=6)
    delete(state, start=3)
    delete(state, 1, 2)
    assert (state.start(P0), state.bitmap(P0)) == (6, None)


def test_a_recorded_hole_moves_the_next_offset_and_is_not_live() -> None:
    state = LogState("t")
    append(state, 2)
    delete(state, 2, 3, 4, next_offset=5)
    append(state, 1)
    assert (state.next(P0), state.live_count(P0)) == (6, 3)
    assert state.next_live(P0, Offset(2)) == 5


def test_a_link_assigns_offsets_in_all_its_partitions_and_is_remembered() -> None:
    state = LogState("t")
    append(state, 2)
    link = LinkBody(
        "q",
        7,
        [
            LinkPart(0, 2, [ObjectRef("a", 3, 1, 1), ObjectRef("b", 4, 1, 1)]),
            LinkPart(1, 0, [ObjectRef("c", 1, 1, 1)]),
        ],
    )
    state.apply(header(Kind.LINK, 0, 0, 8), bodies.encode(link))
    assert state.nexts == {0: 9, 1: 1}
    assert state.transactions == {"q": Transaction(7, {0: (2, 9), 1: (0, 1)})}


@pytest.mark.feature("S03")
def test_links_of_applications_that_link_once_are_forgotten_after_a_while() -> None:
    state, second = LogState("t"), 1_000_000
    for number in range(5):
        for app in ("app", f"app-{number}", f"once-{number}"):
            part = LinkPart(0, state.next(P0), [ObjectRef(app, 1, 1, 1)])
            stamp = number * ONCE_SECONDS * second // 2
            frame = header(Kind.LINK, 0, 0, 1, stamp)
            state.apply(frame, bodies.encode(LinkBody(app, number, [part])), stamp)
    apps = {f"app-{number}" for number in range(5)}
    assert state.transactions.keys() == {"app", *apps, "once-2", "once-3", "once-4"}
    assert facts(restarted(state)) == facts(state)


@pytest.mark.feature("S03")
def test_offsets_of_links_are_remembered_up_to_a_limit_and_epochs_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.log.state.LINK_RANGES_MAX", 6)
    state = LogState("t")

    def link(app: str, epoch: int, partitions: int) -> None:
        parts = [
            LinkPart(p, state.nexts.get(p, 0), [ObjectRef("k", 1, 1, 1)]) for p in range(partitions)
        ]
        state.apply(header(Kind.LINK, 0, 0, partitions), bodies.encode(LinkBody(app, epoch, parts)))

    def link_ranges() -> dict[str, tuple[int, int]]:
        return {app: (done.epoch, len(done.ranges)) for app, done in state.transactions.items()}

    for app in "abc":
        link(app, 1, 2)
    assert link_ranges() == {"a": (1, 2), "b": (1, 2), "c": (1, 2)}
    link("a", 2, 2)
    assert link_ranges() == {"b": (1, 2), "c": (1, 2), "a": (2, 2)}
    link("d", 1, 1)
    assert link_ranges() == {"b": (1, 0), "c": (1, 2), "a": (2, 2), "d": (1, 1)}
    assert list(state.transactions) == ["b", "c", "a", "d"], "the newest is the last"
    again = restarted(state)
    assert facts(again) == facts(state)
    assert list(again.transactions) == list(state.transactions)
    link("e", 1, 9)
    assert link_ranges() == {"b": (1, 0), "c": (1, 0), "a": (2, 0), "d": (1, 0), "e": (1, 9)}


@pytest.mark.parametrize(("kind", "body"), [(Kind.SETTLE, b"not read"), (Kind.CHECKPOINT, b"")])
def test_other_frames_change_nothing_but_the_time(kind: Kind, body: bytes) -> None:
    state = LogState("t")
    append(state, 2, stamp=5)
    before = facts(state)
    state.apply(header(kind, 0, 0, 1, stamp=9), body)
    assert facts(state) == {**before, "last_timestamp": 9}
    state.apply(header(kind, 0, 0, 1, stamp=3), body)
    assert state.last_timestamp == 9


def test_a_checkpoint_has_the_ends_of_changed_partitions() -> None:
    state = LogState("t")
    append(state, 2)
    ends = state.take_ends()
    later = LogState("t")
    later.apply(header(Kind.CHECKPOINT, 0, 0, 0), ends)
    assert later.nexts == state.nexts
    later.apply(header(Kind.CHECKPOINT, 0, 0, 0), state.take_ends())
    assert later.nexts == state.nexts


def test_the_first_settlement_is_kept_until_it_is_released() -> None:
    state = LogState("t")
    state.apply(header(Kind.SETTLE, 0, 0, 1)._replace(number=5), b"x")
    state.apply(header(Kind.SETTLE, 0, 0, 1)._replace(number=6), b"x")
    assert LogState.from_start(state.to_start()).settle_floor == 5


def test_the_time_of_a_batch_is_that_of_its_last_message() -> None:
    state = LogState("t")
    fields = header(Kind.BATCH, 0, 0, 2, stamp=5)
    stamped = fields._replace(codec=Codec.PACKED, flags=Flag.TIMESTAMPS)
    body = (5).to_bytes(8, "little") + (70).to_bytes(8, "little") + b"the rest"
    state.apply(stamped, body)
    assert state.last_timestamp == 70
    state.apply(fields._replace(first_offset=2), b"", 99)
    assert restarted(state).last_timestamp == 99


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 5)),
        st.tuples(st.just("delete"), st.just(0), st.integers(0, 30)),
        st.tuples(st.just("purge"), st.just(0), st.integers(0, 30)),
        st.tuples(st.just("skip"), st.just(0), st.integers(1, 5)),
    ),
    max_size=25,
)


@given(OPERATIONS)
@settings(max_examples=200)
def test_the_state_agrees_with_a_list_of_all_messages_also_after_a_restart(
    operations: list[tuple[str, int, int]],
) -> None:
    state = LogState("t")
    live: dict[int, set[int]] = {0: set(), 1: set()}
    nexts, start = {0: 0, 1: 0}, 0
    for operation, partition, number in operations:
        if operation == "append":
            append(state, number, partition)
            live[partition] |= set(range(nexts[partition], nexts[partition] + number))
            nexts[partition] += number
        elif operation == "delete" and number < nexts[0]:
            delete(state, number)
            live[0].discard(number)
        elif operation == "purge":
            start = max(start, min(number, nexts[0]))
            delete(state, start=start)
            live[0] = {offset for offset in live[0] if offset >= start}
        elif operation == "skip":
            delete(state, *range(nexts[0], nexts[0] + number), next_offset=nexts[0] + number)
            nexts[0] += number
        for seen in (state, restarted(state)):
            assert {p: n for p, n in seen.nexts.items() if n} == {
                p: n for p, n in nexts.items() if n
            }
            assert seen.start(P0) == start
            assert [seen.live_count(PartitionId(p)) for p in (0, 1)] == [
                len(live[0]),
                len(live[1]),
            ]
            for offset in range(start, nexts[0] + 2):
                expected = min((o for o in live[0] if o >= offset), default=max(offset, nexts[0]))
                assert seen.next_live(P0, Offset(offset)) == expected
        assert facts(restarted(state)) == facts(state)


def test_the_start_frame_carries_partitions_in_order_as_plain_numbers() -> None:
    state = LogState("default/default/t")
    state.lineage = "here"
    append(state, 1, partition=9, stamp=77)
    append(state, 5)
    delete(state, start=2)
    assert state.to_start() == StartBody(
        "default/default/t",
        77,
        b"\0\0\0\0\x09\0\0\0",
        (2).to_bytes(8, "little") + bytes(8),
        (5).to_bytes(8, "little") + (1).to_bytes(8, "little"),
        {},
        {},
        "here",
    )


def test_offsets_that_were_given_out_are_reached_and_never_go_back() -> None:
    state = LogState("t")
    state.floor = 4
    append(state, 2, partition=1)
    state.reach(1, 9)
    state.reach(1, 7)
    state.reach(0, 6)
    assert facts(restarted(state))["nexts"] == {0: 6, 1: 9}
    assert (state.starts(), state.live_count(P1)) == ({0: 4, 1: 4}, 5)


@pytest.mark.feature("T04")
def test_a_skipped_stretch_is_deleted_and_survives_a_restart() -> None:
    state = LogState("t")
    append(state, 2)
    state.skip(0, 1000)
    state.skip(1, 3)
    append(state, 1)
    for one in (state, restarted(state)):
        assert (one.next(P0), one.next(P1)) == (1001, 3)
        assert one.next_live(P0, Offset(2)) == 1000
        assert (one.live_count(P0), one.live_count(P1)) == (3, 0)
