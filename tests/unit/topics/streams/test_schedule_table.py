"""Which schedules are due first."""

from __future__ import annotations

import pytest

from penstock.topics.streams import schedule_table
from penstock.topics.streams.schedule_table import Due, ScheduleTable


def table(*dues: Due) -> ScheduleTable:
    made = ScheduleTable()
    for due in dues:
        made.put(due)
    return made


A, B, C = Due(10, 1, b"a"), Due(20, 2, b"b"), Due(10, 3, b"c")


def test_those_that_are_due_come_in_order_and_only_so_many() -> None:
    made = table(C, B, A)
    assert made.next_us() == 10
    assert made.due(9, 5) == []
    assert made.due(10, 1) == [A]
    assert made.due(30, 5) == [C, B]
    assert made.due(30, 5) == []


def test_of_a_subject_the_last_one_counts() -> None:
    made = table(A, Due(5, 4, b"a"))
    assert made.get(b"a") == Due(5, 4, b"a")
    assert made.due(30, 5) == [Due(5, 4, b"a")]
    assert len(made) == 1


def test_what_is_forgotten_is_not_due_unless_there_is_another() -> None:
    made = table(A, B)
    made.forget(A)
    made.forget(Due(21, 2, b"b"))
    assert made.due(30, 5) == [B]


def test_what_was_due_is_put_again() -> None:
    made = table(A)
    (due,) = made.due(10, 5)
    made.put(due._replace(us=15))
    assert made.next_us() == 15
    made.forget(due)
    assert made.due(20, 5) == [Due(15, 1, b"a")]


def test_nothing_is_due_of_an_empty_table() -> None:
    assert table().next_us() is None


def test_too_many_are_forgotten_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_table, "SCHEDULES_MAX", 10)
    made = table(*(Due(100 - number, number, b"%d" % number) for number in range(11)))
    assert len(made) == 5
    assert made.beyond_us == 95
    assert [due.us for due in made.due(200, 20)] == [90, 91, 92, 93, 94]
    assert made.next_us() == 95


def test_one_that_changes_often_takes_no_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_table, "SCHEDULES_MAX", 100)
    made = table(*(Due(1000 + number, number, b"same") for number in range(1000)))
    assert len(made._heap) < 10
    assert made.due(5000, 5) == [Due(1999, 999, b"same")]
