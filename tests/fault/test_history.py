"""The checker finds every kind of broken promise, and blames nobody who kept his."""

from collections.abc import Iterable, Sequence

import pytest

from tests.powercut.facts import (
    Acked,
    Creating,
    Cut,
    Cutting,
    Deleting,
    Done,
    Ends,
    Fact,
    Id,
    Listener,
    Manifest,
    Object,
    Purging,
    Read,
    Recovered,
    Sending,
    Settled,
    Settling,
)
from tests.powercut.history import History
from tests.powercut.partition import Kind
from tests.powercut.payload import identify, payload

TOPIC = "default/default/t"
A0, A1, A2 = (1, 0), (1, 1), (1, 2)
B0 = (2, 0)


def sent(*firsts: Id, count: int = 1) -> list[Fact]:
    return [Sending(publisher, first, count, TOPIC, 0) for publisher, first in firsts]


def acked(first: Id, offset: int) -> list[Fact]:
    return [Acked(*first, offset)]


def published(*ids: Id, offset: int = 0) -> list[Fact]:
    """Each sent and acked, from `offset` on."""
    facts: list[Fact] = []
    for position, id_ in enumerate(ids):
        facts += sent(id_) + acked(id_, offset + position)
    return facts


def found(
    records: Sequence[tuple[int, Id]] = (),
    *,
    start: int = 0,
    next_: int | None = None,
    live: int | None = None,
    settled: Sequence[int] = (),
    topics: Sequence[str] = (TOPIC,),
    troubles: Sequence[str] = (),
) -> list[Fact]:
    """What a recovery tells."""
    end = next_ if next_ is not None else max([start, *(offset + 1 for offset, _ in records)])
    return [
        Read(TOPIC, 0, [offset for offset, _ in records], [id_ for _, id_ in records]),
        Ends(TOPIC, 0, start, end, len(records) if live is None else live),
        Settled(TOPIC, list(settled)),
        Recovered(list(topics), list(troubles)),
    ]


def uploaded(
    *objects: tuple[int, int, Sequence[Id]],
    start: int = 0,
    deleted: Sequence[int] = (),
    problems: Sequence[str] = (),
) -> list[Fact]:
    """What manifest and bucket hold: of each object its first offset, its end, and its rows."""
    told: list[Fact] = [Manifest(TOPIC, len(objects), 0, 0, {0: start}, {0: list(deleted)})]
    for first, next_, ids in objects:
        rows = {0: [(first + position, id_) for position, id_ in enumerate(ids)]}
        told.append(Object(TOPIC, f"{first}.parquet", [(0, first, next_)], rows, list(problems)))
    return told


def broken(*cycles: Iterable[Fact]) -> set[Kind]:
    """Which promises break when these facts are told; before each part the process starts anew."""
    history = History()
    kinds = set()
    for cycle in cycles:
        history.begin()
        for fact in cycle:
            kinds |= {violation.kind for violation in history.tell(fact)}
    return kinds


EMPTY = found()


def test_what_was_acked_and_is_there_breaks_nothing() -> None:
    load = published(A0, B0, A1)
    assert not broken([*EMPTY, *load], found([(0, A0), (1, B0), (2, A1)]))


def test_what_was_sent_and_not_acked_may_be_there_or_not() -> None:
    load = published(A0) + sent(A1)
    assert not broken([*EMPTY, *load], found([(0, A0), (1, A1)]))
    assert not broken([*EMPTY, *load], found([(0, A0)]))


def test_an_acked_message_that_is_not_there_is_lost() -> None:
    load = published(A0, A1)
    assert Kind.LOST in broken([*EMPTY, *load], found([(0, A0)]))
    assert Kind.LOST in broken([*EMPTY, *load], found([(1, A1)]))
    assert Kind.LOST in broken([*EMPTY, *load], [Recovered([], [])])


def test_a_message_that_a_reader_got_must_stay_as_if_it_was_acked() -> None:
    load = [*sent(A0), Read(TOPIC, 0, [0], [A0])]
    assert Kind.LOST in broken([*EMPTY, *load], found())


def test_a_message_that_recovery_showed_must_stay_as_if_it_was_acked() -> None:
    assert Kind.LOST in broken([*EMPTY, *sent(A0)], found([(0, A0)]), found())


def test_an_acked_message_at_another_offset_is_found() -> None:
    load = published(A0) + sent(B0)
    kinds = broken([*EMPTY, *load], found([(0, B0), (1, A0)]))
    assert {Kind.REUSED, Kind.MOVED} <= kinds


def test_an_offset_given_to_another_message_after_a_recovery_is_reused() -> None:
    load = published(A0, A1)
    again = found([(0, A0), (1, A1)])
    assert Kind.REUSED in broken([*EMPTY, *load], [*again, *published(B0, offset=1)])


def test_a_deleted_offset_is_not_given_again() -> None:
    load = [*published(A0, A1), Deleting(9, TOPIC, 0, [1]), Done(9)]
    again = found([(0, A0)], next_=2)
    assert not broken([*EMPTY, *load], [*again, *published(B0, offset=2)])
    assert Kind.REUSED in broken([*EMPTY, *load], [*again, *published(B0, offset=1)])


def test_an_end_that_moves_back_is_found_even_if_what_was_there_is_deleted() -> None:
    load = [*published(A0), Deleting(9, TOPIC, 0, [0]), Done(9)]
    assert broken([*EMPTY, *load], found(next_=0)) == {Kind.ENDS}


def test_two_acks_of_one_offset_are_found_before_any_cut() -> None:
    assert Kind.REUSED in broken([*EMPTY, *published(A0), *published(B0)])


def test_one_offset_or_one_message_twice_is_a_duplicate() -> None:
    load = sent(A0, A1)
    assert Kind.DUPLICATE in broken([*EMPTY, *load], found([(0, A0), (0, A1)], live=1))
    assert Kind.DUPLICATE in broken([*EMPTY, *load], found([(0, A0), (1, A0)]))


def test_messages_of_one_publisher_in_another_order_are_found() -> None:
    load = sent(A0, A1)
    assert broken([*EMPTY, *load], found([(0, A1), (1, A0)])) == {Kind.ORDER}
    assert broken([*EMPTY, *load], found([(1, A1), (0, A0)])) == {Kind.ORDER}


def test_a_message_that_nobody_sent_is_a_phantom() -> None:
    assert broken([*EMPTY, *sent(A0)], found([(0, B0)])) == {Kind.PHANTOM}
    assert broken([*EMPTY, *acked(A0, 0)]) == {Kind.PHANTOM}


def test_a_message_in_another_partition_than_it_was_sent_to_is_a_phantom() -> None:
    load = [Sending(*A0, 1, TOPIC, 1)]
    assert broken([*EMPTY, *load], found([(0, A0)])) == {Kind.PHANTOM}


def test_an_unacked_message_that_was_not_there_may_not_come_later() -> None:
    assert broken([*EMPTY, *sent(A0)], found(), found([(0, A0)])) == {Kind.PHANTOM}


def test_a_message_whose_deletion_was_acked_may_not_come_back() -> None:
    load = [*published(A0, A1), Deleting(9, TOPIC, 0, [0]), Done(9)]
    assert not broken([*EMPTY, *load], found([(1, A1)]))
    assert broken([*EMPTY, *load], found([(0, A0), (1, A1)])) == {Kind.BACK}


def test_a_message_that_recovery_found_deleted_may_not_come_back() -> None:
    load = [*published(A0, A1), Deleting(9, TOPIC, 0, [0])]
    assert not broken([*EMPTY, *load], found([(1, A1)]), found([(1, A1)]))
    kinds = broken([*EMPTY, *load], found([(1, A1)]), found([(0, A0), (1, A1)]))
    assert kinds == {Kind.BACK}


def test_a_reader_that_gets_a_message_after_its_acked_deletion_is_found() -> None:
    load = [*published(A0), Deleting(9, TOPIC, 0, [0]), Done(9), Read(TOPIC, 0, [0], [A0])]
    assert broken([*EMPTY, *load]) == {Kind.BACK}


def test_a_deletion_that_was_attempted_may_have_happened_or_not() -> None:
    load = [*published(A0, A1), Deleting(9, TOPIC, 0, [0, 1])]
    assert not broken([*EMPTY, *load], found(next_=2))
    assert not broken([*EMPTY, *load], found([(0, A0), (1, A1)]))


def test_half_a_deletion_is_found() -> None:
    load = [*published(A0, A1), Deleting(9, TOPIC, 0, [0, 1])]
    assert broken([*EMPTY, *load], found([(1, A1)])) == {Kind.TORN}


def test_a_deletion_of_what_was_never_promised_is_not_half_a_deletion() -> None:
    load = [*published(A0), *sent(A1), Cutting("now"), *acked(A1, 1), Deleting(9, TOPIC, 0, [0, 1])]
    assert not broken([*EMPTY, *load], found([(0, A0)]))


def test_half_a_run_is_found() -> None:
    load = sent(A0, count=3)
    assert not broken([*EMPTY, *load], found([(0, A0), (1, A1), (2, A2)]))
    assert broken([*EMPTY, *load], found([(0, A0), (1, A1)])) == {Kind.TORN}
    assert broken([*EMPTY, *load], found([(0, A0), (1, A1), (3, A2)], next_=4)) == {Kind.TORN}


def test_a_run_with_a_deletion_in_it_is_not_half_a_run() -> None:
    load = [*sent(A0, count=3), *acked(A0, 0), Deleting(9, TOPIC, 0, [1])]
    assert not broken([*EMPTY, *load], found([(0, A0), (2, A2)]))


def test_a_purge_moves_the_start_once_it_is_acked_and_no_further_than_asked() -> None:
    load = [*published(A0, A1, A2), Purging(9, TOPIC, 0, 2)]
    there, purged = [(0, A0), (1, A1), (2, A2)], [(2, A2)]
    assert not broken([*EMPTY, *load], found(there))
    assert not broken([*EMPTY, *load], found(purged, start=2))
    assert Kind.ENDS in broken([*EMPTY, *load, Done(9)], found(there))
    assert {Kind.ENDS, Kind.LOST} <= broken([*EMPTY, *load], found(start=3, next_=3))


def test_a_hole_that_the_log_does_not_know_of_is_found() -> None:
    load = sent(A0, B0)
    assert not broken([*EMPTY, *load], found([(1, B0)]))
    assert broken([*EMPTY, *load], found([(1, B0)], live=2)) == {Kind.HOLE}


def test_recorded_holes_are_counted() -> None:
    history = History()
    history.begin()
    for fact in [*EMPTY, *sent(A0, B0)]:
        history.tell(fact)
    history.begin()
    for fact in found([(1, B0)]):
        history.tell(fact)
    assert history.recorded_holes == 1


def test_a_topic_that_was_made_must_be_there() -> None:
    load: list[Fact] = [Creating(9, TOPIC)]
    assert not broken([*EMPTY, *load], [Recovered([], [])]) - {Kind.TOPIC}
    assert not broken([Recovered([], []), *load], [Recovered([], [])])
    assert broken([Recovered([], []), *load, Done(9)], [Recovered([], [])]) == {Kind.TOPIC}


def test_an_acked_settlement_must_be_there_once_and_in_order() -> None:
    load: list[Fact] = [Settling(8, TOPIC), Done(8), Settling(9, TOPIC)]
    assert not broken([*EMPTY, *load], found(settled=[8]))
    assert not broken([*EMPTY, *load], found(settled=[8, 9]))
    for wrong in ([], [9], [9, 8], [8, 8], [8, 7]):
        assert broken([*EMPTY, *load], found(settled=wrong)) == {Kind.SETTLEMENT}


def test_a_purge_does_not_take_settlements_with_it() -> None:
    load = [*published(A0), Settling(8, TOPIC), Done(8), Purging(9, TOPIC, 0, 1), Done(9)]
    assert not broken([*EMPTY, *load], found(start=1, settled=[8]))
    assert broken([*EMPTY, *load], found(start=1)) == {Kind.SETTLEMENT}


def test_what_the_log_itself_calls_wrong_is_passed_on() -> None:
    assert broken(found(troubles=["it burns"])) == {Kind.TROUBLE}


def test_an_ack_that_nobody_could_have_heard_is_no_promise() -> None:
    load = [*sent(A0), Cutting("now"), *acked(A0, 0)]
    assert not broken([*EMPTY, *load], found())
    assert not broken([*EMPTY, *load], found([(0, A0)]))


def test_an_ack_of_what_was_sent_with_the_power_off_is_a_lie() -> None:
    load = [Cutting("now"), Cut(), *published(A0)]
    assert broken([*EMPTY, *load]) == {Kind.LIE}


def test_objects_that_follow_one_another_and_have_every_message_break_nothing() -> None:
    load = published(A0, A1, A2, B0)
    there = found([(0, A0), (1, A1), (2, A2), (3, B0)])
    assert not broken([*EMPTY, *load], [*uploaded(), *there])
    assert not broken([*EMPTY, *load], [*uploaded((0, 1, [A0]), (1, 3, [A1, A2])), *there])


def test_an_object_that_the_manifest_names_and_that_is_damaged_is_found() -> None:
    told = uploaded((0, 1, [A0]), problems=["it is missing"])
    assert broken([*EMPTY, *published(A0)], [*told, *found([(0, A0)])]) == {Kind.OBJECT}


def test_an_object_that_lacks_a_message_or_has_another_is_found() -> None:
    there = found([(0, A0), (1, A1)])
    for rows in ([A0], [A0, B0]):
        told = uploaded((0, 2, rows))
        assert broken([*EMPTY, *published(A0, A1)], [*told, *there]) == {Kind.OBJECT}


def test_an_object_may_have_and_may_lack_what_was_deleted() -> None:
    load = [*published(A0, A1), Deleting(9, TOPIC, 0, [1]), Done(9)]
    for rows in ([A0], [A0, A1]):
        assert not broken([*EMPTY, *load], [*uploaded((0, 2, rows)), *found([(0, A0)], next_=2)])


def test_gaps_and_overlaps_of_the_manifest_are_found() -> None:
    load = published(A0, A1, A2)
    there = found([(0, A0), (1, A1), (2, A2)])
    for told in (
        uploaded((0, 1, [A0]), (2, 3, [A2])),
        uploaded((1, 3, [A1, A2])),
        uploaded((0, 2, [A0, A1]), (1, 3, [A1, A2])),
        uploaded((0, 4, [A0, A1, A2])),
    ):
        assert broken([*EMPTY, *load], [*told, *there]) == {Kind.MANIFEST}


def test_a_gap_of_the_manifest_where_nothing_is_left_is_none() -> None:
    load = [*published(A0, A1, A2), Deleting(9, TOPIC, 0, [1]), Done(9)]
    told = uploaded((0, 1, [A0]), (2, 3, [A2]))
    assert not broken([*EMPTY, *load], [*told, *found([(0, A0), (2, A2)])])
    purge: list[Fact] = [Purging(9, TOPIC, 0, 2), Done(9)]
    told = uploaded((2, 3, [A2]))
    load = [*published(A0, A1, A2), *purge]
    assert not broken([*EMPTY, *load], [*told, *found([(2, A2)], start=2)])


def test_what_was_in_the_manifest_once_stays_there() -> None:
    there = found([(0, A0), (1, A1)])
    before = [*uploaded((0, 2, [A0, A1])), *there]
    assert not broken([*EMPTY, *published(A0, A1)], before, before)
    for later in (uploaded(), uploaded((0, 1, [A0]))):
        kinds = broken([*EMPTY, *published(A0, A1)], before, [*later, *there])
        assert kinds == {Kind.MANIFEST}


def test_an_ack_of_a_cloud_topic_promises_the_manifest_too() -> None:
    load = [Creating(8, TOPIC, cloud=True), Done(8), *published(A0), *sent(A1)]
    there = found([(0, A0), (1, A1)])
    begin: list[Fact] = [Recovered([], [])]
    assert not broken([*begin, *load], [*uploaded((0, 1, [A0])), *there])
    assert broken([*begin, *load], [*uploaded(), *there]) == {Kind.CLOUD}
    # What a reader got is durable here, and need not be anywhere else.
    seen: list[Fact] = [Read(TOPIC, 0, [1], [A1])]
    assert not broken([*begin, *load, *seen], [*uploaded((0, 1, [A0])), *there])


def test_a_deletion_of_a_cloud_topic_is_in_the_manifest_when_it_is_acked() -> None:
    made: list[Fact] = [Recovered([], []), Creating(7, TOPIC, cloud=True), Done(7)]
    load = [*made, *published(A0, A1), Deleting(8, TOPIC, 0, [0])]
    held, left = (0, 2, [A0, A1]), found([(1, A1)])
    assert not broken(load, [*uploaded(held), *left])
    assert not broken([*load, Done(8)], [*uploaded(held, deleted=[0]), *left])
    assert not broken([*load, Done(8)], [*uploaded(held, start=1), *left])
    assert broken([*load, Done(8)], [*uploaded(held), *left]) == {Kind.CLOUD}
    load = [*made, *published(A0, A1), Purging(8, TOPIC, 0, 1), Done(8)]
    left = found([(1, A1)], start=1)
    assert not broken(load, [*uploaded(held, start=1), *left])
    assert broken(load, [*uploaded(held), *left]) == {Kind.CLOUD}


def test_records_that_only_objects_have_are_counted() -> None:
    history = History()
    for fact in [*EMPTY, *published(A0, A1)]:
        history.tell(fact)
    history.begin()
    there: list[Fact] = [Read(TOPIC, 0, [0, 1], [A0, A1]), Ends(TOPIC, 0, 0, 2, 2, files_start=1)]
    for fact in [*uploaded((0, 1, [A0])), *there, Recovered([TOPIC], [])]:
        assert not history.tell(fact)
    assert (history.cold_records, history.uploads) == (1, 1)


def test_a_recovery_that_was_cut_short_says_nothing() -> None:
    load = published(A0)
    cut_short = [*found()[:-1], Cutting("now"), Recovered([], [])]
    assert not broken([*EMPTY, *load], cut_short, found([(0, A0)]))
    assert Kind.LOST in broken([*EMPTY, *load], cut_short, found())


@pytest.mark.parametrize("size_bytes", [0, 1, 63, 64, 65, 1000])
def test_a_message_tells_who_it_is_unless_a_byte_changed(size_bytes: int) -> None:
    data = payload(A1, size_bytes)
    assert identify(data) == A1
    for position in range(len(data)):
        changed = bytes([*data[:position], data[position] ^ 1, *data[position + 1 :]])
        assert identify(changed) != A1
    assert identify(data[:-1]) is None


def test_facts_do_not_depend_on_how_the_pipe_cuts_them() -> None:
    lines = b'["send",1,2,3,"t",0]\n["ack",1,2,7]\n["done",9'
    told = [Sending(1, 2, 3, "t", 0), Acked(1, 2, 7)]
    for first in range(len(lines)):
        listener = Listener()
        assert listener.receive(lines[:first]) + listener.receive(lines[first:]) == told
