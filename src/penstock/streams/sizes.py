"""The sizes of messages, as NATS counts them, by offset.

Sizes of the newest and of the oldest messages are remembered one by one; of those between only the
sum is known, and they are looked up again when they become the oldest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.columns import Columns
from penstock.model.run import ColumnRun, Run

FILE_OVERHEAD: Final = 30
"""Bytes that NATS adds to subject and payload of a message; headers add a few more."""
HEADER_OVERHEAD: Final = 4
MEMORY_OVERHEAD: Final = 16
Int64s = npt.NDArray[np.int64]


class Measured(NamedTuple):
    """The sizes of messages that were read; offsets without a message take no memory."""

    offsets: Int64s
    """Ascending."""
    sizes: Int64s

    def first(self, default: int) -> int:
        """The first offset, or `default` if there is none."""
        return int(self.offsets[0]) if len(self.offsets) else default

    def dense(self, first: int, stop: int) -> Int64s:
        """The size at every offset of a range, 0 where there is no message."""
        found = np.zeros(max(stop - first, 0), np.int64)
        chosen = (self.offsets >= first) & (self.offsets < stop)
        found[self.offsets[chosen] - first] = self.sizes[chosen]
        return found


class Stretch:
    """Sizes of a contiguous range of offsets, which grows at its end and shrinks at its start."""

    def __init__(self, sizes: Int64s | None = None) -> None:
        self._sizes = np.empty(0, np.uint32) if sizes is None else sizes.astype(np.uint32)
        self._start, self._stop = 0, len(self._sizes)

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, index: int) -> int:
        return int(self._sizes[self._start + index])

    def part(self, start: int, stop: int) -> npt.NDArray[np.uint32]:
        return self._sizes[self._start + start : min(self._start + stop, self._stop)]

    def total(self, start: int, stop: int) -> int:
        return int(self.part(start, stop).sum(dtype=np.int64))

    def add(self, count: int, sizes: int | Sequence[int] | npt.NDArray[Any]) -> None:
        """Append sizes: one for all, or one for each."""
        if self._stop + count > len(self._sizes):
            grown = np.empty(2 * (len(self) + count), np.uint32)
            grown[: len(self)] = self.part(0, len(self))
            self._start, self._stop, self._sizes = 0, len(self), grown
        self._sizes[self._stop : self._stop + count] = sizes
        self._stop += count

    def drop(self, count: int) -> None:
        """Remove the first sizes."""
        self._start = min(self._start + count, self._stop)


class Sizes:
    """Two contiguous ranges of sizes: the oldest ones, and the newest ones from `base` on."""

    def __init__(self, base: int) -> None:
        self.base = self._oldest = base
        self._new, self._old = Stretch(), Stretch()

    @property
    def stop(self) -> int:
        """The offset after the newest."""
        return self.base + len(self._new)

    def __len__(self) -> int:
        """Number of newest sizes."""
        return len(self._new)

    def add(self, count: int, sizes: int | Sequence[int] | Int64s) -> None:
        """Append sizes of the newest messages: one for all, or one for each."""
        self._new.add(count, sizes)

    def get(self, offset: int) -> int | None:
        """The size at an offset; None if it is unknown."""
        if self.base <= offset < self.stop:
            return self._new[offset - self.base]
        index = offset - self._oldest
        return self._old[index] if 0 <= index < len(self._old) else None

    def total(self, start: int, stop: int) -> int | None:
        """The sum over a range; None if some sizes are unknown."""
        if start >= self.base:
            return self._new.total(start - self.base, max(stop - self.base, 0))
        if start >= stop:
            return 0
        end = min(stop, self.base)
        if start < self._oldest or end > self._oldest + len(self._old):
            return None
        newer = self._new.total(0, max(stop - self.base, 0))
        return newer + self._old.total(start - self._oldest, end - self._oldest)

    def set_oldest(self, first: int, sizes: Int64s) -> None:
        """Set the oldest sizes; `first` is the offset of the first of them."""
        self._oldest, self._old = first, Stretch(sizes)

    def forget_before(self, start: int) -> None:
        """Remove the sizes before an offset."""
        gone = start - self._oldest
        if gone > 0:
            self._old.drop(gone)
            self._oldest = start

    def forget(self, count: int, most: int) -> None:
        """Remove the first of the newest sizes, and all but `most` of the oldest."""
        if self._oldest + len(self._old) == self.base:
            moved = self._new.part(0, min(count, max(most - len(self._old), 0)))
            self._old.add(len(moved), moved)
        self._new.drop(count)
        self.base += count


class SizeCounting:
    """Computes the size of each message of a run."""

    def __init__(self, in_memory: bool, subject: bytes) -> None:
        self._fixed = MEMORY_OVERHEAD if in_memory else FILE_OVERHEAD
        self._with_headers = 0 if in_memory else HEADER_OVERHEAD
        self._subject = subject

    def count(self, run: Run | ColumnRun) -> tuple[int | list[int] | Int64s, int]:
        """The size of each message, or one for all, and their sum."""
        if isinstance(run, Run):
            sizes = self._raw(run.subjects, run.payloads, run.headers)
            return sizes, sum(sizes)
        content = run.content
        if isinstance(content, Columns):
            counted = self._columns(content)
            return counted, int(counted.sum())
        each = self._fixed + len(self._subject) + run.size_bytes // max(run.count, 1)
        return each, each * run.count

    def subjects(self, run: Run | ColumnRun) -> Sequence[bytes]:
        if isinstance(run, Run):
            return [run.subjects] * run.count if isinstance(run.subjects, bytes) else run.subjects
        if isinstance(run.content, Columns):
            subjects: list[bytes] = run.content.subjects().to_pylist()
            return subjects
        return [self._subject] * run.count

    def _columns(self, content: Columns) -> Int64s:
        subject, headers = content.subject, content.headers
        sizes = self._fixed + _lengths(content.payload)
        sizes += len(subject) if isinstance(subject, bytes) else _lengths(subject)
        if headers is not None:
            blocks = _lengths(headers)
            sizes += blocks + self._with_headers * (blocks > 0)
        return sizes

    def _raw(
        self,
        subjects: bytes | Sequence[bytes],
        payloads: Sequence[bytes],
        headers: Sequence[bytes] | None,
    ) -> list[int]:
        fixed = self._fixed
        if isinstance(subjects, bytes):
            fixed += len(subjects)
            sizes = [fixed + size for size in map(len, payloads)]
        else:
            lengths = zip(map(len, subjects), map(len, payloads), strict=True)
            sizes = [fixed + subject + payload for subject, payload in lengths]
        if headers is None:
            return sizes
        return [
            size + len(block) + self._with_headers if block else size
            for size, block in zip(sizes, headers, strict=True)
        ]


def _lengths(column: pa.BinaryArray) -> Int64s:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)
