"""What messages count, as NATS counts them, by offset.

Remembered of the newest and of the oldest; those between are only known in sum, and looked up again
when they become the oldest.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.columns import Columns
from penstock.model.run import ColumnRun, Run

FILE_OVERHEAD: Final = 30
"""Bytes that a message counts beside its subject and payload; with headers, a few more."""
HEADER_OVERHEAD: Final = 4
MEMORY_OVERHEAD: Final = 16
_FEW: Final = 64
"""Up to this many, Python adds up faster than numpy has begun."""


def total_of(sizes: array[int]) -> int:
    if len(sizes) <= _FEW:
        return sum(sizes)
    return int(np.frombuffer(sizes, np.uint32).sum(dtype=np.int64))


class Sizes:
    """Two stretches of offsets without gaps; the newer one begins at `base`."""

    def __init__(self, base: int) -> None:
        self.base = self._oldest = base
        self._new, self._old = array("I"), array("I")

    @property
    def stop(self) -> int:
        """Behind the newest."""
        return self.base + len(self._new)

    def __len__(self) -> int:
        """How many of the newest are known."""
        return len(self._new)

    def add(self, sizes: array[int]) -> None:
        self._new.extend(sizes)

    def get(self, offset: int) -> int | None:
        """None when it is not known."""
        if self.base <= offset < self.stop:
            return self._new[offset - self.base]
        index = offset - self._oldest
        return self._old[index] if 0 <= index < len(self._old) else None

    def total(self, start: int, stop: int) -> int | None:
        """Of all between; None when some are not known."""
        if start >= self.base:
            return total_of(self._new[start - self.base : max(stop - self.base, 0)])
        if start >= stop:
            return 0
        end = min(stop, self.base)
        if start < self._oldest or end > self._oldest + len(self._old):
            return None
        newer = total_of(self._new[: max(stop - self.base, 0)])
        return newer + total_of(self._old[start - self._oldest : end - self._oldest])

    def learn(self, first: int, sizes: array[int], most: int) -> None:
        """Remember these as the oldest, and of them the first."""
        self._oldest, self._old = first, sizes[:most]

    def forget_before(self, start: int) -> None:
        """Nobody will ask for what is before."""
        gone = start - self._oldest
        if gone > 0:
            del self._old[:gone]
            self._oldest = start

    def forget(self, count: int, most: int) -> None:
        """Let go of the oldest of the newest; of the oldest of all up to `most` are kept."""
        if self._oldest + len(self._old) == self.base:
            room = max(most - len(self._old), 0)
            self._old.extend(self._new[: min(count, room)])
        del self._new[:count]
        self.base += count


class Counting:
    """What each message of a run counts."""

    def __init__(self, in_memory: bool, subject: bytes) -> None:
        self._fixed = MEMORY_OVERHEAD if in_memory else FILE_OVERHEAD
        self._with_headers = 0 if in_memory else HEADER_OVERHEAD
        self._subject = subject

    def count(self, run: Run | ColumnRun) -> tuple[array[int], int]:
        """Of each message, and of all."""
        if isinstance(run, Run):
            sizes = array("I", self._raw(run.subjects, run.payloads, run.headers))
            return sizes, total_of(sizes)
        content = run.content
        if isinstance(content, Columns):
            counted = self._columns(content)
            return array("I", counted.astype(np.uint32).tobytes()), int(counted.sum())
        rows = int(content.num_rows)
        each = self._fixed + len(self._subject) + content.nbytes // max(rows, 1)
        return array("I", [each]) * rows, each * rows

    def subjects(self, run: Run | ColumnRun) -> Sequence[bytes]:
        if isinstance(run, Run):
            return [run.subjects] * run.count if isinstance(run.subjects, bytes) else run.subjects
        if isinstance(run.content, Columns):
            subjects: list[bytes] = run.content.subjects().to_pylist()
            return subjects
        return [self._subject] * run.count

    def _columns(self, content: Columns) -> npt.NDArray[np.int64]:
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


def _lengths(column: pa.BinaryArray) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)
