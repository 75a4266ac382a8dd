"""What messages count, as NATS counts them, by offset.

Remembered of the newest and of the oldest; those between are only known in sum, and looked up again
when they become the oldest.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from penstock.model.columns import Columns
from penstock.model.run import ColumnRun, Run

FILE_OVERHEAD: Final = 30
"""Bytes that a message counts beside its subject and payload; with headers, a few more."""
HEADER_OVERHEAD: Final = 4
MEMORY_OVERHEAD: Final = 16


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

    def add(self, sizes: Sequence[int]) -> None:
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
            return sum(self._new[start - self.base : max(stop - self.base, 0)])
        if start >= stop:
            return 0
        end = min(stop, self.base)
        if start < self._oldest or end > self._oldest + len(self._old):
            return None
        newer = sum(self._new[: max(stop - self.base, 0)])
        return newer + sum(self._old[start - self._oldest : end - self._oldest])

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

    def sizes(self, run: Run | ColumnRun) -> list[int]:
        if isinstance(run, Run):
            return self._raw(run.subjects, run.payloads, run.headers)
        content = run.content
        if not isinstance(content, Columns):
            each = content.nbytes // max(content.num_rows, 1)
            return [self._fixed + len(self._subject) + each] * content.num_rows
        subject, blocks = content.subject, content.headers
        subjects = subject if isinstance(subject, bytes) else subject.to_pylist()
        headers = None if blocks is None else [block or b"" for block in blocks.to_pylist()]
        return self._raw(subjects, content.payload.to_pylist(), headers)

    def subjects(self, run: Run | ColumnRun) -> Sequence[bytes]:
        if isinstance(run, Run):
            return [run.subjects] * run.count if isinstance(run.subjects, bytes) else run.subjects
        if isinstance(run.content, Columns):
            subjects: list[bytes] = run.content.subjects().to_pylist()
            return subjects
        return [self._subject] * run.count

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
