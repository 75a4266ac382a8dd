from typing import Any

import pytest

from penstock.metadata.etcd.calls import TokenRefused
from penstock.metadata.etcd.messages import message
from penstock.metadata.etcd.watch import WatchProgress
from penstock.metadata.interface import (
    HistoryCompacted,
    KeyChange,
    MetadataRefused,
    MetadataUnavailable,
    Revision,
)


def event(revision: int, key: str = "/a", deleted: bool = False) -> Any:
    kv = message("KeyValue", key=key.encode(), value=b"v", mod_revision=revision)
    return message("Event", type=int(deleted), kv=kv)


def response(*revisions: int, fragment: bool = False, **fields: Any) -> Any:
    events = [event(revision) for revision in revisions]
    return message("WatchResponse", events=events, fragment=fragment, **fields)


def change(revision: int) -> KeyChange:
    return KeyChange("/a", b"v", Revision(revision))


def test_changes_come_as_they_are_and_a_delete_has_no_value() -> None:
    progress = WatchProgress(b"/", Revision(4))
    told = message("WatchResponse", events=[event(5), event(6, "/b", deleted=True)])
    assert progress.take(told) == [change(5), KeyChange("/b", None, Revision(6))]


def test_a_stream_starts_at_the_last_revision_seen() -> None:
    progress = WatchProgress(b"/a/", Revision(4))
    create = progress.request().create_request
    assert (create.key, create.range_end, create.start_revision) == (b"/a/", b"/a0", 4)
    assert create.fragment
    progress.take(response(5, 7))
    assert progress.request().create_request.start_revision == 7


def test_from_the_beginning_is_not_from_now() -> None:
    create = WatchProgress(b"", Revision(0)).request().create_request
    assert (create.key, create.range_end, create.start_revision) == (b"\0", b"\0", 1)


def test_changes_seen_before_are_dropped() -> None:
    progress = WatchProgress(b"/", Revision(4))
    assert progress.take(response(3, 4, 5)) == [change(5)]
    assert progress.take(response(4, 5)) == []
    assert progress.take(response(5, 6)) == [change(6)]


def test_a_fragmented_revision_is_returned_whole() -> None:
    progress = WatchProgress(b"/", Revision(4))
    assert progress.take(response(5, 6, 6, fragment=True)) == [change(5)]
    assert progress.take(response(6, fragment=True)) == []
    assert progress.take(response(6, 7, fragment=True)) == [change(6)] * 4
    assert progress.take(response()) == [change(7)]


def test_changes_held_back_by_a_broken_stream_are_returned_once() -> None:
    progress = WatchProgress(b"/", Revision(4))
    assert progress.take(response(5, 6, fragment=True)) == [change(5)]
    assert progress.request().create_request.start_revision == 5
    assert progress.take(response(5, 6, 6)) == [change(6)] * 2


def test_a_response_without_events_returns_no_changes() -> None:
    progress = WatchProgress(b"/", Revision(4))
    assert progress.take(message("WatchResponse", created=True)) == []
    assert progress.take(message("WatchResponse", fragment=True)) == []


def test_a_compacted_history_is_an_error_that_names_the_revisions() -> None:
    progress = WatchProgress(b"/", Revision(4))
    progress.take(response(5))
    with pytest.raises(HistoryCompacted) as caught:
        progress.take(message("WatchResponse", canceled=True, compact_revision=9))
    assert (caught.value.since, caught.value.oldest) == (5, 9)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("etcdserver: no leader", MetadataUnavailable),
        ("etcdserver: permission denied", MetadataRefused),
        ("etcdserver: invalid auth token", TokenRefused),
        ("", MetadataUnavailable),
    ],
)
def test_a_watch_that_etcd_ends_reports_the_reason(reason: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        WatchProgress(b"/", Revision(4)).take(
            message("WatchResponse", canceled=True, cancel_reason=reason)
        )
    assert type(caught.value) is error
