"""Entries of settle frames."""

import msgspec
from pyroaring import BitMap64

from penstock.ledger import job_records
from penstock.ledger.job_records import Change, Entry, JobSnapshot, Start


def through_bytes(entry: Entry) -> Entry:
    kind, version, plain = msgspec.msgpack.decode(job_records.encode([entry]))
    assert (kind, version) == ("job", 1)
    return job_records.decode(plain)


def test_entries_are_restored_from_their_bytes() -> None:
    entries: list[Entry] = [
        Change(3, 1002, 5, 7, 1, 99, 10),
        Change(3, 1001, 5, BitMap64([1, 2, 900])),
        Start(3, 0, BitMap64([4])),
        JobSnapshot(9, {0: b"x"}, {3: [1, b"y", {2: b"z"}]}),
    ]
    assert [through_bytes(entry) for entry in entries] == entries


def test_members_of_later_versions_are_ignored() -> None:
    assert job_records.decode([0, 3, 1003, 5, 7, 1, 0, 0, "new"]) == Change(3, 1003, 5, 7, 1)
    assert job_records.decode([1, 9, {}, {}, "new"]) == JobSnapshot(9, {}, {})


def test_a_change_counts_its_jobs() -> None:
    assert Change(1, 1001, 0, 5).jobs == 1
    assert Change(1, 1001, 0, BitMap64([5, 6])).jobs == 2
