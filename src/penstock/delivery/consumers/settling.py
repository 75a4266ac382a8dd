"""Writes the settlements of a stream's consumers to the log and reads them back after a restart.

Changes that no client waits for are written together once per interval. If a client waits for one,
all changes of this turn of the event loop are written in one frame. A log also retains its files
until every consumer has passed them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from penstock.delivery.settlement_writer import SettlementFrame, SettlementWriter
from penstock.host.tasks import Timer
from penstock.ledger.settlement import KIND, Journal, SettledState, decode, encode
from penstock.streams import Stream
from penstock.topics import OpenTopic

_events = structlog.get_logger(__name__)

CHANGES_MAX: Final = 256
"""After this many changes a complete settlement is written, which replaces them."""

Done = Callable[[bool], None]
"""Called with True once the settlement is durable, with False if it could not be written."""


class JournalWriter:
    """Writes the journals of the consumers of one topic."""

    def __init__(self, opened: OpenTopic, interval_seconds: float) -> None:
        self._opened, self._interval = opened, interval_seconds
        self.durable = opened.durable
        """False for topics in memory, whose settlements are not written."""
        self._floors: dict[Journal, int] = {}
        """The frame of each consumer's last complete settlement, or one before it."""
        self._changes: dict[Journal, int] = {}
        self._dirty: dict[Journal, None] = {}
        self._waiting: list[Done] = []
        self._timer = Timer(self.flush)
        self._writer = SettlementWriter(opened, self._collect)

    def restored(self, journal: Journal, frame: int) -> None:
        """Continue a restored consumer, whose last complete settlement is in `frame`."""
        self._floors[journal] = frame
        journal.resume()

    def forget(self, journal: Journal) -> None:
        """Stop writing for a consumer that was deleted."""
        for part in (self._floors, self._changes, self._dirty):
            part.pop(journal, None)
        self._release_frames()

    def write_soon(self, journal: Journal) -> None:
        """Write the changes of a journal within the interval."""
        if not self.durable:
            journal.discard()
        elif journal not in self._dirty:
            self._dirty[journal] = None
            if self._timer.when is None:
                self._timer.after(self._interval)

    def write_now(self, journal: Journal, done: Done) -> None:
        """Write the changes of a journal in this turn, and call `done` when they are durable."""
        if not self.durable:
            done(True)
            return
        self._dirty[journal] = None
        self._waiting.append(done)
        self._writer.write()

    def flush(self) -> None:
        """Write all pending changes in this turn."""
        self._timer.stop()
        self._writer.write()

    def _collect(self) -> SettlementFrame:
        self._timer.stop()
        dirty, self._dirty = self._dirty, {}
        waiting, self._waiting = self._waiting, []
        frame = self._opened.durable_frame
        for journal in self._outdated():
            journal.require_whole()
            dirty[journal] = None
        changes = {journal: change for journal in dirty if (change := journal.take()) is not None}
        for journal, change in changes.items():
            self._changes[journal] = 0 if change.whole else self._changes.get(journal, 0) + 1
        whole = [journal for journal, change in changes.items() if change.whole]
        finished = partial(self._written, list(changes), whole, frame, waiting)
        return SettlementFrame(encode(list(changes.values())), len(changes), finished)

    async def close(self) -> None:
        """Write all pending changes and wait until they are durable."""
        self.flush()
        await self._writer.close()
        self._timer.stop()

    def rotated(self) -> bool:
        """Whether a complete settlement lies in an older file than the active one."""
        if not self._floors:
            return False
        return min(self._floors.values()) < self._opened.active_frame

    def _outdated(self) -> list[Journal]:
        """The journals to write in full again, so that old files can be deleted."""
        first = self._opened.active_frame
        old = [journal for journal, frame in self._floors.items() if frame < first]
        return old + [item for item, count in self._changes.items() if count >= CHANGES_MAX]

    def _written(
        self,
        journals: list[Journal],
        whole: list[Journal],
        frame: int,
        waiting: list[Done],
        error: BaseException | None,
    ) -> None:
        if error is not None:
            self._failed(journals, waiting, error)
            return
        for journal in whole:
            self._floors[journal] = frame
        if whole:
            self._release_frames()
        for done in waiting:
            done(True)

    def _failed(self, journals: list[Journal], waiting: list[Done], error: BaseException) -> None:
        _events.warning(
            "settlements_not_written", topic=str(self._opened.topic.name), reason=str(error)
        )
        for journal in journals:
            journal.require_whole()
            if not self._opened.closed:
                self.write_soon(journal)
        for done in waiting:
            done(False)

    def _release_frames(self) -> None:
        """Let the log delete the files that hold no settlement in use."""
        if self.durable and not self._opened.closed:
            self._opened.settlements.keep(KIND, min(self._floors.values(), default=None))


class UnreadFiles:
    """Retains the files of a log that the consumers of one stream have not passed yet.

    The log deletes whole files, so only their ends matter: when a file is finished, the first frame
    of the next one and the offset reached are recorded. Once every consumer has passed that offset,
    the frames before are not needed. Files from before the start count as ending there.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream, self._opened = stream, stream.opened
        self._kind = f"unread {stream.name}"
        self._ends = deque([(self._opened.durable_frame, int(stream.next_offset))])
        self._newest = self._opened.active_frame
        self._frame = 0

    def releases(self, offset: int) -> bool:
        """Whether a file may be deleted once a consumer has settled everything before `offset`."""
        return bool(self._ends) and offset >= self._ends[0][1]

    def record_commit(self) -> None:
        """Record the end of a file, if a commit was the first one in the next file."""
        active = self._opened.active_frame
        if active > self._newest:
            self._newest = active
            self._ends.append((active, int(self._stream.next_offset)))

    def release(self, offsets: Iterable[int]) -> None:
        """Release the files that end before the lowest of the consumers' settled offsets.

        Without consumers all files are released.
        """
        lowest = min(offsets, default=None)
        while lowest is not None and self.releases(lowest):
            self._frame = self._ends.popleft()[0]
        self._opened.settlements.keep(self._kind, None if lowest is None else self._frame)


@dataclass(slots=True)
class RestoredState:
    """The state of one consumer that its settlements in the log add up to."""

    frame: int
    """The frame of the last complete settlement; earlier ones are not needed."""
    settled: SettledState = field(default_factory=SettledState)


async def read_settled(opened: OpenTopic, scope: str) -> dict[tuple[str, int], RestoredState]:
    """Read the settlements of a stream's consumers, by name without scope and creation time.

    Raises FormatError, VersionUnknown, OSError.
    """
    states: dict[tuple[str, int], RestoredState] = {}
    for frame, version, entries in await opened.settlements.read(KIND):
        for change in decode(version, entries):
            consumer = (change.consumer.removeprefix(scope), change.created_us)
            if change.whole:
                states[consumer] = RestoredState(frame)
            if consumer in states:
                states[consumer].settled.apply(change)
    return states
