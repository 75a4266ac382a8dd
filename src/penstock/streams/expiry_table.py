"""The expiry table of a stream: when messages with a TTL of their own expire.

New entries are in memory; when there are many, they are moved to a sorted, immutable run file, of
which one block at a time is in memory. Small runs are merged without the entries of deleted
messages, so that neither the number of runs nor their size grows with what the stream has ever
stored.

The owner of the table writes a checkpoint that names the runs. Runs that were merged into others
are removed only after that, so that a crash at any moment leaves a checkpoint whose runs exist.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.formats import expiry
from penstock.formats.expiry import BLOCK_ENTRIES, NO_ENTRIES, ExpiryEntries, RunInfo
from penstock.log import SideFiles
from penstock.model.errors import FormatError

RUN_PREFIX: Final = "expiry-"
RECENT_MAX: Final = 8 * BLOCK_ENTRIES
"""Entries in memory that are moved to a run together."""
MERGED_RUNS: Final = 16
"""Small runs that are merged at a time."""
MERGED_ENTRIES: Final = RECENT_MAX * MERGED_RUNS
"""Limit of entries in memory during a merge, and in the largest run."""
SMALL_ENTRIES: Final = MERGED_ENTRIES // 4
"""A run with up to this many entries is small."""

Alive = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
"""Returns a mask of the offsets that have a message."""


class RecentEntries:
    """Unsorted entries that are in no run yet."""

    def __init__(self) -> None:
        self._dues, self._offsets = array("q"), array("q")
        self.next_us: int | None = None

    def __len__(self) -> int:
        return len(self._dues)

    def add(self, entries: ExpiryEntries) -> None:
        self._dues.frombytes(entries.dues.tobytes())
        self._offsets.frombytes(entries.offsets.tobytes())
        if len(entries):
            earliest = int(entries.dues.min())
            self.next_us = earliest if self.next_us is None else min(self.next_us, earliest)

    def all(self) -> ExpiryEntries:
        """A copy of all entries."""
        return ExpiryEntries(np.array(self._dues, np.int64), np.array(self._offsets, np.int64))

    def take(self, now_us: int, most: int) -> ExpiryEntries:
        """Remove and return due entries, `most` at most."""
        if self.next_us is None or self.next_us > now_us:
            return NO_ENTRIES
        entries = self.all()
        due = np.flatnonzero(entries.dues <= now_us)[:most]
        mask = np.zeros(len(entries), np.bool_)
        mask[due] = True
        self.replace(entries.chosen(~mask))
        return entries.chosen(mask)

    def replace(self, entries: ExpiryEntries) -> None:
        """Replace all entries by these."""
        self._dues, self._offsets, self.next_us = array("q"), array("q"), None
        self.add(entries)


class ExpiryRun:
    """A run file, of which entries are consumed from the start."""

    def __init__(self, files: SideFiles, info: RunInfo) -> None:
        self._files = files
        self.number, self.entries, self.consumed = info.number, info.entries, info.expired
        self.next_us = info.next_us
        """When the first remaining entry is due."""
        self._checked = False
        self._block, self._block_number = NO_ENTRIES, -1

    def __len__(self) -> int:
        return self.entries - self.consumed

    @property
    def name(self) -> str:
        return run_name(self.number)

    @property
    def info(self) -> RunInfo:
        return RunInfo(self.number, self.entries, self.consumed, self.next_us)

    @property
    def in_memory(self) -> int:
        return len(self._block)

    async def take(self, now_us: int, most: int) -> ExpiryEntries:
        """Consume and return due entries, `most` at most. Raises FormatError, OSError."""
        block, start = await self._load()
        due = int(np.searchsorted(block.dues[start:], now_us, "right"))
        entries = block.part(start, start + min(due, most))
        self.consumed += len(entries)
        if len(self):
            block, start = await self._load()
            self.next_us = int(block.dues[start])
        return entries

    async def remaining(self) -> ExpiryEntries:
        """All remaining entries, without consuming them. Raises FormatError, OSError."""
        parts: list[ExpiryEntries] = []
        for number in range(self.consumed // BLOCK_ENTRIES, -(-self.entries // BLOCK_ENTRIES)):
            start = max(self.consumed - number * BLOCK_ENTRIES, 0)
            block = await self._read(number)
            parts.append(block.part(start, len(block)))
        return expiry.concatenate(parts)

    async def _load(self) -> tuple[ExpiryEntries, int]:
        """The block with the first remaining entry, and the index of that entry."""
        number, start = divmod(self.consumed, BLOCK_ENTRIES)
        if number != self._block_number:
            self._block, self._block_number = await self._read(number), number
        return self._block, start

    async def _read(self, number: int) -> ExpiryEntries:
        if not self._checked:
            await self._check()
        position, size = expiry.block_range(self.entries, number)
        data = await self._files.read_part(self.name, position, size)
        return expiry.decode_block(data or b"", size)

    async def _check(self) -> None:
        data = await self._files.read_part(self.name, 0, expiry.RUN_HEADER_BYTES)
        if data is None:
            raise FormatError(f"{self.name} does not exist")
        expiry.check_run_header(data, self.entries)
        self._checked = True


class ExpiryTable:
    """The entries of one stream; a table without files keeps all of them in memory."""

    def __init__(self, files: SideFiles | None, runs: Sequence[RunInfo] = ()) -> None:
        self._files = files
        self._recent = RecentEntries()
        self._runs = [] if files is None else [ExpiryRun(files, info) for info in runs]
        self._number = max((run.number for run in self._runs), default=0)
        self._unused: list[str] = []
        """Files that the next checkpoint will not name."""

    def __len__(self) -> int:
        return len(self._recent) + sum(map(len, self._runs))

    @property
    def in_memory(self) -> int:
        """Number of entries in memory."""
        return len(self._recent) + sum(run.in_memory for run in self._runs)

    @property
    def full(self) -> bool:
        """Whether the entries in memory must be moved to a run before others are added."""
        return self._files is not None and len(self._recent) >= RECENT_MAX

    @property
    def has_unused_files(self) -> bool:
        """Whether there are run files that a new checkpoint would not name."""
        return bool(self._unused)

    @property
    def next_us(self) -> int | None:
        """When the first entry is due; None if there is none."""
        times = [run.next_us for run in self._runs]
        if self._recent.next_us is not None:
            times.append(self._recent.next_us)
        return min(times, default=None)

    def runs(self) -> list[RunInfo]:
        """The runs, for a checkpoint."""
        return [run.info for run in self._runs]

    def add(self, entries: ExpiryEntries) -> None:
        self._recent.add(entries)

    async def take(self, now_us: int, most: int) -> ExpiryEntries:
        """Remove and return due entries, `most` at most. Raises FormatError, OSError.

        The caller adds those again whose messages it could not delete.
        """
        parts = [self._recent.take(now_us, most)]
        try:
            for run in list(self._runs):
                while len(run) and run.next_us <= now_us and (room := most - _count(parts)):
                    parts.append(await run.take(now_us, room))
                if not len(run):
                    self._forget([run])
        except BaseException:
            self._recent.add(expiry.concatenate(parts))
            raise
        return expiry.concatenate(parts)

    async def spill(self, alive: Alive) -> None:
        """Move entries in memory to a run; merge small runs. Raises FormatError, OSError."""
        if self._files is None:
            return
        if len(self._recent):
            entries = self._recent.all()
            self._runs += await self._write(self._files, entries.chosen(alive(entries.offsets)))
            self._recent.replace(NO_ENTRIES)
        small = [run for run in self._runs if len(run) <= SMALL_ENTRIES]
        if len(small) >= MERGED_RUNS:
            await self._merge(self._files, small, alive)

    async def sweep(self, alive: Alive) -> None:
        """Remove the entries of deleted messages. Raises FormatError, OSError."""
        entries = self._recent.all()
        self._recent.replace(entries.chosen(alive(entries.offsets)))
        if self._files is not None:
            await self._merge(self._files, list(self._runs), alive)

    async def remove_unused(self) -> None:
        """Remove run files that the checkpoint does not name. Raises OSError."""
        if self._files is not None and self._unused:
            unused, self._unused = self._unused, []
            await self._files.remove(unused)

    async def _merge(self, files: SideFiles, runs: list[ExpiryRun], alive: Alive) -> None:
        """Replace runs by as few as possible, merging as many at a time as fit into memory."""
        merged: list[ExpiryRun] = []
        parts: list[ExpiryEntries] = []
        for run in runs:
            if _count(parts) + len(run) > MERGED_ENTRIES:
                merged += await self._write(files, expiry.concatenate(parts))
                parts = []
            entries = await run.remaining()
            parts.append(entries.chosen(alive(entries.offsets)))
        merged += await self._write(files, expiry.concatenate(parts))
        self._runs += merged
        self._forget(runs)

    async def _write(self, files: SideFiles, entries: ExpiryEntries) -> list[ExpiryRun]:
        """Write a run of these entries; returns none if there are no entries."""
        if not len(entries):
            return []
        self._number += 1
        ordered = entries.by_due_time()
        info = RunInfo(self._number, len(ordered), 0, int(ordered.dues[0]))
        await files.write(run_name(info.number), expiry.encode_run(ordered))
        return [ExpiryRun(files, info)]

    def _forget(self, runs: list[ExpiryRun]) -> None:
        self._runs = [run for run in self._runs if run not in runs]
        self._unused += [run.name for run in runs]


def run_name(number: int) -> str:
    """The name of a run file."""
    return f"{RUN_PREFIX}{number:010d}"


def _count(parts: list[ExpiryEntries]) -> int:
    return sum(map(len, parts))
