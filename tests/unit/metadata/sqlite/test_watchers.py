import asyncio

from penstock.metadata.interface import KeyChange, Revision
from penstock.metadata.sqlite.tables import ChangeRead
from penstock.metadata.sqlite.watchers import Watcher, Watchers

LIMIT = 2


def news(complete_to: int, *revisions: int) -> ChangeRead:
    changes = [KeyChange("/a/1", b"", Revision(revision)) for revision in revisions]
    return ChangeRead(changes, Revision(complete_to))


def parked_at(watchers: Watchers, revision: int) -> Watcher:
    watcher = watchers.add(b"/a/", Revision(revision))
    watchers.reading(watcher)
    watchers.has_read(watcher, news(revision), LIMIT)
    assert watcher.parked
    return watcher


async def test_a_new_watch_reads_at_once() -> None:
    watcher = Watchers().add(b"/a/", Revision(5))
    await asyncio.wait_for(watcher.wait(), 10)
    assert watcher.seen == 5


async def test_only_a_change_below_its_prefix_wakes_a_watch() -> None:
    watchers = Watchers()
    watcher = parked_at(watchers, 5)
    watchers.committed(Revision(6), [b"/b", b"/a"])
    assert watcher.parked
    watchers.committed(Revision(7), [b"/b", b"/a/1"])
    assert not watcher.parked


async def test_a_waiting_watch_advances_past_changes_of_other_prefixes() -> None:
    watchers = Watchers()
    watcher = parked_at(watchers, 5)
    watchers.committed(Revision(9), [b"/b"])
    assert watcher.seen == 9


async def test_changes_committed_during_a_read_of_a_watch_are_read_next() -> None:
    watchers = Watchers()
    watcher = parked_at(watchers, 5)
    watchers.committed(Revision(6), [b"/a/1"])
    watchers.reading(watcher)
    watchers.committed(Revision(7), [b"/b"])
    watchers.committed(Revision(8), [b"/a/2"])
    watchers.committed(Revision(9), [b"/b"])
    watchers.has_read(watcher, news(6, 6), LIMIT)
    assert not watcher.parked
    assert watcher.seen == 6


async def test_a_watch_without_unread_changes_advances_with_every_commit() -> None:
    watchers = Watchers()
    watcher = parked_at(watchers, 5)
    watchers.committed(Revision(6), [b"/a/1"])
    watchers.reading(watcher)
    watchers.committed(Revision(7), [b"/b"])
    watchers.has_read(watcher, news(6, 6), LIMIT)
    assert watcher.parked
    assert watcher.seen == 7


async def test_a_read_that_reached_its_limit_continues_where_it_ended() -> None:
    watchers = Watchers()
    watcher = parked_at(watchers, 5)
    watchers.committed(Revision(9), [b"/a/1"])
    watchers.reading(watcher)
    watchers.committed(Revision(10), [b"/b"])
    watchers.has_read(watcher, news(7, 6, 7), LIMIT)
    assert not watcher.parked
    assert watcher.seen == 7


async def test_a_watch_ahead_of_the_store_is_not_set_back() -> None:
    watchers = Watchers()
    watcher = parked_at(watchers, 100)
    watchers.committed(Revision(6), [b"/b"])
    assert watcher.seen == 100
    watchers.committed(Revision(7), [b"/a/1"])
    watchers.reading(watcher)
    watchers.committed(Revision(8), [b"/a/1"])
    watchers.has_read(watcher, news(8), LIMIT)
    assert watcher.seen == 100


async def test_a_watch_that_was_removed_is_left_alone() -> None:
    watchers = Watchers()
    watcher = parked_at(watchers, 5)
    watchers.remove(watcher)
    watchers.wake_all()
    assert watcher.parked
