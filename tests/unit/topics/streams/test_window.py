"""Ids of the recent past."""

from __future__ import annotations

import pytest

from penstock.topics.streams import window
from penstock.topics.streams.window import Window


class Time:
    now = 1000

    def __call__(self) -> int:
        return self.now


def test_an_id_is_known_for_as_long_as_the_window() -> None:
    time = Time()
    ids = Window(100, time)
    ids.add(b"a", 1)
    time.now = 1060
    ids.add(b"b", 2)
    assert (ids.find(b"a"), ids.find(b"b"), ids.find(b"c")) == (1, 2, None)
    time.now = 1100
    assert ids.find(b"a") == 1
    time.now = 1101
    assert (ids.find(b"a"), ids.find(b"b")) == (None, 2)


def test_without_a_window_nothing_is_known() -> None:
    ids = Window(0, Time())
    ids.add(b"a", 1)
    assert ids.find(b"a") is None
    assert ids.last_id(1) == b"a"


def test_an_id_that_came_earlier_ends_earlier() -> None:
    time = Time()
    ids = Window(100, time)
    ids.add(b"old", 1, 800)
    ids.add(b"recent", 2, 950)
    assert (ids.find(b"old"), ids.find(b"recent")) == (None, 2)
    time.now = 1051
    assert ids.find(b"recent") is None


def test_a_window_that_became_shorter_forgets_sooner() -> None:
    time = Time()
    ids = Window(100, time)
    ids.add(b"a", 1)
    time.now = 1050
    assert ids.find(b"a") == 1
    ids.window_us = 10
    assert ids.find(b"a") is None


def test_what_was_not_stored_after_all_may_come_again() -> None:
    ids = Window(100, Time())
    ids.add(b"a", 1)
    ids.forget(b"a")
    ids.forget(b"never")
    assert ids.find(b"a") is None
    ids.add(b"a", 2)
    assert ids.find(b"a") == 2


def test_the_last_id_is_that_of_the_last_message() -> None:
    ids = Window(100, Time())
    assert ids.last_id(0) == b""
    ids.add(b"a", 7)
    assert ids.last_id(7) == b"a"
    assert ids.last_id(8) == b""


def test_only_so_many_ids_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "IDS_MAX", 3)
    ids = Window(100, Time())
    for number in range(5):
        ids.add(b"%d" % number, number)
    assert [ids.find(b"%d" % number) for number in range(5)] == [None, None, 2, 3, 4]
