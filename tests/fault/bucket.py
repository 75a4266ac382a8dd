"""What a manifest and a bucket really hold: JSON and Parquet, read with no code of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem

DATA: Final = "/data-"
READS_AT_ONCE: Final = 4
Entry = dict[str, Any]
Rows = dict[tuple[int, int], bytes]
"""Payloads by partition and offset."""


class Bucket:
    """A prefix of an S3 bucket, past every proxy."""

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files, self._root = files, root
        self._known: dict[str, Rows] = {}

    def data_objects(self) -> set[str]:
        """Keys of all data objects, whether the manifest names them or not."""
        found = self._files.get_file_info(FileSelector(self._root, recursive=True))
        keys = (info.path.removeprefix(f"{self._root}/") for info in found if info.is_file)
        return {key for key in keys if DATA in key}

    def rows(self, entries: Iterable[Entry]) -> Rows:
        """The rows of all objects of a manifest; each offset must be in one of them."""
        rows: Rows = {}
        found = list(entries)
        with ThreadPoolExecutor(READS_AT_ONCE) as threads:
            each = threads.map(self._rows_of, [entry["object_id"] for entry in found])
        for entry, mine in zip(found, each, strict=True):
            assert len(mine) == entry["rows"]
            assert not rows.keys() & mine.keys(), "an offset lies in two objects"
            rows |= mine
        return rows

    def _rows_of(self, key: str) -> Rows:
        if key not in self._known:
            columns = ["partition", "offset", "payload"]
            table = pq.read_table(f"{self._root}/{key}", columns=columns, filesystem=self._files)
            places = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
            rows = dict(zip(places, table["payload"].to_pylist(), strict=True))
            assert len(rows) == table.num_rows, "an object has an offset twice"
            self._known[key] = rows
        return self._known[key]


def entries_of(values: Iterable[bytes | str]) -> list[Entry]:
    """The manifest, from the values of its keys."""
    return sorted((json.loads(value) for value in values), key=lambda entry: entry["sequence"])


def ends(
    entries: Iterable[Entry], may_skip: Callable[[Entry | None, Entry], bool] = lambda *_: False
) -> dict[int, int]:
    """Where the partitions end; no offset twice, and none left out before an entry that may not."""
    found: dict[int, int] = {}
    last: dict[int, Entry] = {}
    for entry in entries:
        for partition, first, next_ in entry["ranges"]:
            end = found.get(partition, 0)
            assert first >= end, f"{entry['object_id']} overlaps what ends at {end}"
            if first > end:
                skips = may_skip(last.get(partition), entry)
                assert skips, f"{entry['object_id']} leaves a gap behind {end}"
            assert next_ > first
            found[partition], last[partition] = next_, entry
    return found
