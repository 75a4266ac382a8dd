from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import FormatError, VersionUnknown
from penstock.model.units import PartitionRange
from penstock.tiers.manifest import entries as forms
from penstock.tiers.manifest.entries import Head, ObjectEntry, Snapshot, Trash, UploadSession
from penstock.tiers.manifest.entry_index import EntryIndex
from tests.broker.storage import entry

HEAD = Head(
    topic="a/b/c",
    next_sequence=4,
    uploaded_frame=9,
    starts={0: 5},
    deletes={0: b"\x00\xff", 7: b"x"},
    deletes_object="k",
    transactions={"app": (3, {0: (1, 2)})},
    reserved=100,
    epoch=8,
    lineage="l",
    durability="cloud",
    change="c",
)
ENTRY = entry(PartitionRange(0, 5, 9), PartitionRange(7, 0, 2), sequence=3)


@pytest.mark.feature("T17")
@pytest.mark.parametrize(
    ("value", "decode"),
    [
        (HEAD, forms.decode_head),
        (ENTRY, forms.decode_entry),
        (UploadSession("k", "u", 2, 8, ENTRY), forms.decode_session),
        (Trash("k", 77), forms.decode_trash),
        (Snapshot(HEAD, [ENTRY], 5), forms.decode_snapshot),
    ],
    ids=["head", "entry", "session", "trash", "snapshot"],
)
def test_a_record_is_decoded_as_it_was_encoded(value: Any, decode: Callable[[bytes], Any]) -> None:
    assert decode(forms.encode_record(value)) == value


@pytest.mark.feature("T17")
def test_an_entry_has_the_fields_of_the_seed_and_ours_by_their_names() -> None:
    written = json.loads(forms.encode_record(ENTRY))
    seed = {
        *("object_id", "start_offset", "end_offset", "size", "etag", "created_at"),
        *("completed", "upload_id", "backend"),
    }
    assert seed <= written.keys()
    assert written["ranges"] == [[0, 5, 9], [7, 0, 2]]


@pytest.mark.parametrize(
    "decode",
    [
        *(forms.decode_head, forms.decode_entry, forms.decode_session),
        *(forms.decode_trash, forms.decode_snapshot),
    ],
)
def test_a_record_of_another_kind_is_reported_as_damage(decode: Callable[[bytes], Any]) -> None:
    for data in (b"", b"{", b"[]", b'{"object_id": 5, "topic": 5, "head": 5}'):
        with pytest.raises(FormatError, match="the manifest is damaged"):
            decode(data)


def test_a_manifest_of_a_later_version_asks_for_an_upgrade() -> None:
    later = Head(version=3)
    for decode, value in (
        (forms.decode_head, later),
        (forms.decode_snapshot, Snapshot(later, [], 0)),
    ):
        with pytest.raises(VersionUnknown) as caught:
            decode(forms.encode_record(value))
        assert (caught.value.version, caught.value.known) == (3, 2)


def test_unknown_fields_are_ignored() -> None:
    data = json.dumps({"object_id": "k", "until_us": 7, "new": 1}).encode()
    assert forms.decode_trash(data) == Trash("k", 7)


def test_lowest_and_highest_offset_are_over_all_partitions() -> None:
    assert forms.offset_bounds(
        [PartitionRange(0, 50, 60), PartitionRange(1, 3, 90), PartitionRange(2, 0, 1)]
    ) == (0, 89)


@st.composite
def _manifests(draw: st.DrawFn) -> list[ObjectEntry]:
    """Entries whose ranges ascend in every partition, with gaps between some of them."""
    nexts = dict.fromkeys(range(3), 0)
    found = []
    for sequence in range(draw(st.integers(0, 6))):
        spans = []
        for partition in sorted(draw(st.sets(st.integers(0, 2), min_size=1))):
            first = nexts[partition] + draw(st.integers(0, 2))
            nexts[partition] = first + draw(st.integers(1, 4))
            spans.append(PartitionRange(partition, first, nexts[partition]))
        found.append(entry(*spans, sequence=sequence))
    return found


@given(_manifests())
def test_every_offset_is_found_in_its_entry_and_no_other(entries: list[ObjectEntry]) -> None:
    index = EntryIndex(entries)
    assert (len(index), list(index)) == (len(entries), entries)
    for partition in range(4):
        spans = [(e, r) for e in entries for r in e.ranges if r.partition == partition]
        for offset in range(-1, 50):
            holding = [pair for pair in spans if pair[1].first <= offset < pair[1].next]
            assert index.find(partition, offset) == (holding[0] if holding else None)
            behind = [r.first for _, r in spans if r.first > offset]
            assert index.next_first(partition, offset) == (behind[0] if behind else None)
