"""The spans of one topic, and the background work that keeps them complete and few.

One task for each topic works on one thing at a time, the most urgent first: build the span of a
sealed file, in order of the files; rebuild spans from objects; merge. A failure is logged and
retried. Until then queries use the part in memory or, if there is none, fail because the index is
incomplete.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from penstock.host.child import Child, ChildFailed
from penstock.host.tasks import Backoff, Tasks
from penstock.log.subjects import build, merge
from penstock.log.subjects.bitmaps import LiveOffsets
from penstock.log.subjects.memory import Threads
from penstock.log.subjects.merge import MergeFailed, choose, live_messages, merge_of
from penstock.log.subjects.rebuild import MissingSpan, Objects, find_missing_span, recall
from penstock.log.subjects.span import IndexSpan, SpanDamaged, SpanName, open_spans
from penstock.log.subjects.span_catalog import Part, SealedFile, SpanCatalog, WaitingFile
from penstock.model.errors import IndexUnavailable

RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 60.0

_logger = structlog.get_logger(__name__)


class Spans:
    """Builds, rebuilds and merges the spans of one topic in a background task."""

    def __init__(
        self,
        directory: Path,
        topic_subject: bytes,
        child: Child,
        live: LiveOffsets,
        threads: Threads,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._directory, self._topic_subject = directory, topic_subject
        self._child, self._live, self._threads = child, live, threads
        self.catalog = SpanCatalog(self.wake)
        self._objects: Objects | None = None
        self._missing: MissingSpan | None = None
        self._missing_changed = asyncio.Event()
        self._files: dict[int, SealedFile] = {}
        self._merging: list[IndexSpan] = []
        self._abandoned: list[Path] = []
        self._retry_seconds = retry_seconds
        self._tasks = Tasks()
        self._task: asyncio.Task[None] | None = None
        self._woken = False
        self._closed = False
        self._failure = ""
        """Why the last step failed; empty if it did not."""
        self._forgotten = 0
        """How often spans were dropped because offsets of a gap got messages."""
        self._edition = 0
        """The edition of the next span built from objects; no removed span had it."""
        self.applied = 0
        """How many files got their span since the start."""

    # -- state

    @property
    def complete(self) -> bool:
        """Whether every sealed file has a span or a part in memory, and no span is missing."""
        return self._missing is None and all(w.part is not None for w in self.catalog.waiting)

    async def completed(self) -> None:
        """Wait until `complete`; raises IndexUnavailable if the last step has failed."""
        for waiting in [w for w in self.catalog.waiting if w.part is None]:
            while waiting in self.catalog.waiting and not self._closed:
                if self._failure:
                    raise IndexUnavailable(str(self._directory), self._failure)
                await waiting.finished.wait()
        while self._missing is not None and not self._closed:
            if self._failure:
                raise IndexUnavailable(str(self._directory), self._failure)
            await self._missing_changed.wait()

    # -- changes

    async def open(self, files: Iterable[SealedFile]) -> None:
        """Open the spans on disk and have missing ones built; returns before they are."""
        self.catalog.spans, damages = await self._threads(open_spans, self._directory)
        for damage in damages:
            _logger.error("subject_index_damaged", reason=damage)
        self._files = {file.sequence: file for file in files}
        self._build_missing(0, max(self._files, default=0), edition=0)

    def recall(self, objects: Objects) -> None:
        """Rebuild missing spans from `objects`, which have the messages that left the WAL."""
        self._objects = objects
        self._find_missing_span()
        self.wake()

    def freeze(self, file: SealedFile, part: Part) -> None:
        """Have the span of a sealed file built; queries use `part` until then."""
        if self.catalog.covers(file.sequence):
            return
        self._files[file.sequence] = file
        self.catalog.waiting.append(WaitingFile(file, part, edition=0))
        self.wake()

    def drop(self, sequences: set[int]) -> None:
        """Forget WAL files that were removed because all their messages are deleted."""
        for sequence in sequences:
            self._files.pop(sequence, None)
        for waiting in [w for w in self.catalog.waiting if w.file.sequence in sequences]:
            self.catalog.finish(waiting)
        last = max(sequences, default=-1)
        for span in [s for s in self.catalog.spans if s.name.last <= last]:
            if not any(live_messages(span, partition, self._live) for partition in span.extents):
                self._remove(span)
        self.wake()

    def damaged(self, damage: SpanDamaged) -> None:
        """Drop a damaged span and have it built again from the WAL files that exist."""
        span = damage.span
        if span in self.catalog.spans:
            _logger.error("subject_index_damaged", reason=str(damage))
            self._rebuild(span)
            self._find_missing_span()

    async def forget_before(self, partition: int, offset: int) -> None:
        """Build spans again that begin before `offset`: offsets of a gap have messages now.

        A span that is being built from objects is discarded, since it may lack them too.
        """
        self._forgotten += 1
        for span in list(self.catalog.spans):
            if partition in span.extents and span.extents[partition].first < offset:
                self._rebuild(span)
        self._find_missing_span()
        garbage, self.catalog.garbage = self.catalog.garbage, []
        await self._threads(_remove_files, garbage)

    def wake(self) -> None:
        """Look for work, because something was sealed or deleted."""
        self._woken = True
        if not self._closed and (self._task is None or self._task.done()):
            self._task = self._tasks.start(self._work())

    async def idle(self) -> None:
        """Wait until there is nothing to do."""
        await self._tasks.drain()

    async def close(self) -> None:
        """Stop the background work and close the files."""
        self._closed = True
        await self._tasks.cancel()
        for path in [*self._abandoned, *(span.path for span in self._merging[:1])]:
            with suppress(ChildFailed):
                await self._child.call(merge.give_up, path)
        for span in self.catalog.spans:
            span.close()
        if self.catalog.garbage:
            await self._threads(_remove_files, self.catalog.garbage)
        for waiting in self.catalog.waiting:
            waiting.finished.set()
        self._notify_missing_changed()

    # -- the task

    async def _work(self) -> None:
        backoff = Backoff(self._retry_seconds, RETRY_SECONDS_MAX)
        while True:
            self._woken, self._failure = False, ""
            try:
                if not await self._work_once() and not self._woken:
                    return
                backoff.reset()
            # Any error: the index is derived, so it must neither stop the log nor give up.
            except Exception as error:
                directory = str(self._directory)
                _logger.warning("subject_index_delayed", directory=directory, reason=repr(error))
                self._failure = repr(error)
                for waiting in self.catalog.waiting:
                    waiting.finished.set()
                    waiting.finished = asyncio.Event()
                self._notify_missing_changed()
                await backoff.pause()

    async def _work_once(self) -> bool:
        """Do the most urgent step; return whether there was one."""
        if self.catalog.waiting:
            await self._apply(self.catalog.waiting[0])
        elif self._missing is not None and self._objects is not None:
            await self._fill(self._missing, self._objects)
        elif self._abandoned:
            await self._child.call(merge.give_up, self._abandoned[-1])
            self._abandoned.pop()
        elif self.catalog.garbage:
            garbage, self.catalog.garbage = self.catalog.garbage, []
            await self._threads(_remove_files, garbage)
        elif self._merging:
            await self._merge_on(self._merging)
        else:
            return await self._merge_begin()
        return True

    async def _apply(self, waiting: WaitingFile) -> None:
        try:
            path = await self._build(waiting)
        except FileNotFoundError:
            if waiting in self.catalog.waiting:
                self.catalog.finish(waiting)
                self._find_missing_span()
                if self._objects is None:
                    _logger.error("subject_index_lost", file=str(waiting.file.path))
            return
        span = await self._threads(IndexSpan, path)
        self.applied += 1
        if waiting in self.catalog.waiting:
            insort(self.catalog.spans, span, key=lambda s: s.name)
            self.catalog.finish(waiting)
        else:
            self.catalog.retire(span)

    async def _build(self, waiting: WaitingFile) -> Path:
        """Build the span of a file; the file of a typed topic need not be read."""
        path, sequence, end = waiting.file
        name = SpanName(sequence, sequence, waiting.edition)
        known = {partition: lane.shared() for partition, lane in (waiting.part or {}).items()}
        pieces = {partition: parts for partition, parts in known.items() if parts is not None}
        if waiting.part is not None and len(pieces) == len(known):
            return await self._child.call(build.apply_pieces, self._directory, name, pieces)
        return await self._child.call(
            build.apply, self._directory, name, path, end, self._topic_subject
        )

    async def _fill(self, missing: MissingSpan, objects: Objects) -> None:
        """Build one span of the missing subjects; the missing span is smaller or complete then."""
        forgotten = self._forgotten
        recalled, whole = await recall(missing, objects)
        name = SpanName(missing.first, missing.last if whole else missing.first, self._edition)
        path = await self._child.call(build.apply_recalled, self._directory, name, recalled)
        span = await self._threads(IndexSpan, path)
        if forgotten != self._forgotten:
            self._edition += 1
            self.catalog.retire(span)
            return
        insort(self.catalog.spans, span, key=lambda s: s.name)
        self._find_missing_span()
        facts = {"directory": str(self._directory), "entries": span.entries}
        _logger.info("subject_index_recalled", **facts)

    async def _merge_begin(self) -> bool:
        plan = await choose(tuple(self.catalog.spans), self._live, adjoining=self._objects is None)
        if plan and all(span in self.catalog.spans for span in plan):
            await self._child.call(merge.begin, merge_of(plan, self._live))
            self._merging = plan
        return bool(plan)

    async def _merge_on(self, merging: list[IndexSpan]) -> None:
        try:
            path = await self._child.call(merge.step, merging[0].path)
        except MergeFailed as failure:
            self._merging = []
            for span in merging:
                if span.path == failure.damaged:
                    self.damaged(SpanDamaged(span, "found when it was merged"))
            return
        if path is None:
            return
        merged = await self._threads(IndexSpan, path)
        if self._merging is not merging:
            self.catalog.retire(merged)
            return
        self._merging = []
        start = self.catalog.spans.index(merging[0])
        self.catalog.spans[start : start + len(merging)] = [merged]
        for span in merging:
            self.catalog.retire(span)

    # -- details

    def _build_missing(self, first: int, last: int, edition: int) -> None:
        """Have spans built of the files in this range that have none."""
        waiting = self.catalog.unapplied
        for sequence, file in sorted(self._files.items()):
            covered = sequence in waiting or self.catalog.covers(sequence)
            if first <= sequence <= last and not covered:
                self.catalog.waiting.append(WaitingFile(file, None, edition))
        self.wake()

    def _rebuild(self, span: IndexSpan) -> None:
        self._remove(span)
        # With another name: the old file may still be in use and is removed later.
        self._edition = max(self._edition, span.name.edition + 1)
        self._build_missing(span.name.first, span.name.last, span.name.edition + 1)

    def _find_missing_span(self) -> None:
        if self._objects is not None:
            self._missing = find_missing_span(self.catalog.spans, self._live, self._objects)
            self._notify_missing_changed()

    def _notify_missing_changed(self) -> None:
        self._missing_changed.set()
        self._missing_changed = asyncio.Event()

    def _remove(self, span: IndexSpan) -> None:
        self.catalog.spans.remove(span)
        if span in self._merging:
            self._abandoned.append(self._merging[0].path)
            self._merging = []
        self.catalog.retire(span)


def _remove_files(spans: list[IndexSpan]) -> None:
    for span in spans:
        span.close()
        span.path.unlink(missing_ok=True)
