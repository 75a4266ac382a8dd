"""The spans of one topic: which there are, and the work that keeps them few and complete.

One task a topic does one thing at a time, the most urgent first: make the span of a sealed file, in
order of the files, then what has to come from objects, then merge. What fails is logged and tried
again; until then the part in memory answers, and where there is none queries are told that the
index is not complete.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from penstock.host.child import Child, ChildFailed
from penstock.log.subjects import build, merge
from penstock.log.subjects.file import SpanName
from penstock.log.subjects.live import Lane, Threads
from penstock.log.subjects.merge import MergeFailed
from penstock.log.subjects.plan import Kept, choose, live_messages, merge_of
from penstock.log.subjects.rebuild import Hole, Objects, find_hole, recall
from penstock.log.subjects.store import Span, SpanDamaged, open_spans
from penstock.model.errors import IndexUnavailable

RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 60.0

_logger = structlog.get_logger(__name__)

Part = dict[int, Lane]
"""The partitions of one file in memory."""


class SealedFile(NamedTuple):
    """A WAL file that does not grow any more; behind `end` bytes nothing in it counts."""

    path: Path
    sequence: int
    end: int | None = None


@dataclass(eq=False, slots=True)
class _Waiting:
    """A sealed file without a span; `part` answers for it, without one queries wait."""

    file: SealedFile
    part: Part | None
    edition: int
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Spans:
    """Spans by sequence, the files that wait for theirs, and the task that works on both."""

    def __init__(
        self, directory: Path, topic_subject: bytes, child: Child, kept: Kept, threads: Threads
    ) -> None:
        self._directory, self._topic_subject = directory, topic_subject
        self._child, self._kept, self._threads = child, kept, threads
        self._spans: list[Span] = []
        self._waiting: list[_Waiting] = []
        self._objects: Objects | None = None
        self._hole: Hole | None = None
        self._hole_changed = asyncio.Event()
        self._files: dict[int, SealedFile] = {}
        self._merging: list[Span] = []
        self._abandoned: list[Path] = []
        self._garbage: list[Span] = []
        self._task: asyncio.Task[None] | None = None
        self._woken = False
        self._closed = False
        self._trouble = ""
        """Why the last thing to do failed; empty while it is done, or done."""
        self._edition = 0
        """Of spans made from objects: none of a span that was removed."""
        self.applied = 0
        """Files that got their span by this object."""

    # -- what there is

    @property
    def parts(self) -> list[Part]:
        """Parts of sealed files that have no span yet, oldest first."""
        return [waiting.part for waiting in self._waiting if waiting.part is not None]

    @property
    def complete(self) -> bool:
        """Whether every sealed file has a span or a part in memory, and no hole is known."""
        return self._hole is None and all(w.part is not None for w in self._waiting)

    async def completed(self) -> None:
        """Wait until `complete`; raises IndexUnavailable while that cannot be."""
        for waiting in [w for w in self._waiting if w.part is None]:
            while waiting in self._waiting and not self._closed:
                if self._trouble:
                    raise IndexUnavailable(str(self._directory), self._trouble)
                await waiting.over.wait()
        while self._hole is not None and not self._closed:
            if self._trouble:
                raise IndexUnavailable(str(self._directory), self._trouble)
            await self._hole_changed.wait()

    @property
    def unapplied(self) -> set[int]:
        """Sequences of files that must not be removed yet: their spans are made from them."""
        return {waiting.file.sequence for waiting in self._waiting}

    def covers(self, sequence: int) -> bool:
        """Whether a span has this file."""
        return any(span.name.first <= sequence <= span.name.last for span in self._spans)

    def holds(self, partition: int) -> bool:
        return any(partition in span.extents for span in self._spans)

    @contextmanager
    def hold(self, partition: int) -> Iterator[list[Span]]:
        """The spans with this partition, oldest first; their files stay until this is left."""
        held = [span for span in self._spans if partition in span.extents]
        for span in held:
            span.users += 1
        try:
            yield held
        finally:
            for span in held:
                span.users -= 1
                if span.retired and not span.users:
                    self._throw_away(span)

    # -- what happens

    async def open(self, files: Iterable[SealedFile]) -> None:
        """Open the spans on disk and have the missing ones made; returns before they are."""
        self._spans, damages = await self._threads(open_spans, self._directory)
        for damage in damages:
            _logger.error("subject_index_damaged", reason=damage)
        self._files = {file.sequence: file for file in files}
        self._make_missing(0, max(self._files, default=0), edition=0)

    def recall(self, objects: Objects) -> None:
        """What has left the WAL can be had from here: have what is missing made of it."""
        self._objects = objects
        self._look_for_holes()
        self.wake()

    def freeze(self, file: SealedFile, part: Part) -> None:
        """A file was sealed: `part` answers for it until its span is made."""
        if self.covers(file.sequence):
            return
        self._files[file.sequence] = file
        self._waiting.append(_Waiting(file, part, edition=0))
        self.wake()

    def drop(self, sequences: set[int]) -> None:
        """WAL files are gone because all that was in them is deleted."""
        for sequence in sequences:
            self._files.pop(sequence, None)
        for waiting in [w for w in self._waiting if w.file.sequence in sequences]:
            self._finish(waiting)
        last = max(sequences, default=-1)
        for span in [s for s in self._spans if s.name.last <= last]:
            if not any(live_messages(span, partition, self._kept) for partition in span.extents):
                self._remove(span)
        self.wake()

    def damaged(self, damage: SpanDamaged) -> None:
        """Throw a span away and have it made again from the WAL files that are there."""
        span = damage.span
        if span in self._spans:
            _logger.error("subject_index_damaged", reason=str(damage))
            self._remove(span)
            # Another name: the file of this one may still be in use, and is removed after.
            self._edition = max(self._edition, span.name.edition + 1)
            self._make_missing(span.name.first, span.name.last, span.name.edition + 1)
            self._look_for_holes()

    def wake(self) -> None:
        """Look for work: something was sealed or deleted."""
        self._woken = True
        if not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._work())

    async def idle(self) -> None:
        """Wait until there is nothing to do."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop working and let go of the files."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for path in [*self._abandoned, *(span.path for span in self._merging[:1])]:
            with suppress(ChildFailed):
                await self._child.call(merge.give_up, path)
        for span in self._spans:
            span.close()
        if self._garbage:
            await self._threads(_remove_files, self._garbage)
        for waiting in self._waiting:
            waiting.over.set()
        self._tell_hole_changed()

    # -- the task

    async def _work(self) -> None:
        delay = RETRY_SECONDS
        while True:
            self._woken, self._trouble = False, ""
            try:
                if not await self._work_once() and not self._woken:
                    return
                delay = RETRY_SECONDS
            # Whatever went wrong: the index is derived and must neither stop the log nor give up.
            except Exception as error:
                directory = str(self._directory)
                _logger.warning("subject_index_delayed", directory=directory, reason=repr(error))
                self._trouble = repr(error)
                for waiting in self._waiting:
                    waiting.over.set()
                    waiting.over = asyncio.Event()
                self._tell_hole_changed()
                await asyncio.sleep(delay)
                delay = min(2 * delay, RETRY_SECONDS_MAX)

    async def _work_once(self) -> bool:
        """Do the most urgent thing; False when there is none."""
        if self._waiting:
            await self._apply(self._waiting[0])
        elif self._hole is not None and self._objects is not None:
            await self._fill(self._hole, self._objects)
        elif self._abandoned:
            await self._child.call(merge.give_up, self._abandoned[-1])
            self._abandoned.pop()
        elif self._garbage:
            garbage, self._garbage = self._garbage, []
            await self._threads(_remove_files, garbage)
        elif self._merging:
            await self._merge_on(self._merging)
        else:
            return await self._merge_begin()
        return True

    async def _apply(self, waiting: _Waiting) -> None:
        try:
            made = await self._built(waiting)
        except FileNotFoundError:
            if waiting in self._waiting:
                self._finish(waiting)
                self._look_for_holes()
                if self._objects is None:
                    _logger.error("subject_index_lost", file=str(waiting.file.path))
            return
        span = await self._threads(Span, made)
        self.applied += 1
        if waiting in self._waiting:
            insort(self._spans, span, key=lambda s: s.name)
            self._finish(waiting)
        else:
            self._retire(span)

    async def _built(self, waiting: _Waiting) -> Path:
        """The span of a file; in a typed topic there is no need to read that."""
        path, sequence, end = waiting.file
        name = SpanName(sequence, sequence, waiting.edition)
        known = {partition: lane.shared() for partition, lane in (waiting.part or {}).items()}
        pieces = {partition: found for partition, found in known.items() if found is not None}
        if waiting.part is not None and len(pieces) == len(known):
            return await self._child.call(build.apply_pieces, self._directory, name, pieces)
        return await self._child.call(
            build.apply, self._directory, name, path, end, self._topic_subject
        )

    async def _fill(self, hole: Hole, objects: Objects) -> None:
        """Make one span of what is missing; what is left then is a smaller hole."""
        recalled, whole = await recall(hole, objects)
        name = SpanName(hole.first, hole.last if whole else hole.first, self._edition)
        made = await self._child.call(build.apply_recalled, self._directory, name, recalled)
        span = await self._threads(Span, made)
        insort(self._spans, span, key=lambda s: s.name)
        self._look_for_holes()
        facts = {"directory": str(self._directory), "entries": span.entries}
        _logger.info("subject_index_recalled", **facts)

    async def _merge_begin(self) -> bool:
        plan = await choose(tuple(self._spans), self._kept, adjoining=self._objects is None)
        if plan and all(span in self._spans for span in plan):
            await self._child.call(merge.begin, merge_of(plan, self._kept))
            self._merging = plan
        return bool(plan)

    async def _merge_on(self, merging: list[Span]) -> None:
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
        merged = await self._threads(Span, path)
        if self._merging is not merging:
            self._retire(merged)
            return
        self._merging = []
        start = self._spans.index(merging[0])
        self._spans[start : start + len(merging)] = [merged]
        for span in merging:
            self._retire(span)

    # -- details

    def _make_missing(self, first: int, last: int, edition: int) -> None:
        """Have spans made of the files in this range that have none."""
        waiting = self.unapplied
        for sequence, file in sorted(self._files.items()):
            covered = sequence in waiting or self.covers(sequence)
            if first <= sequence <= last and not covered:
                self._waiting.append(_Waiting(file, None, edition))
        self.wake()

    def _look_for_holes(self) -> None:
        if self._objects is not None:
            self._hole = find_hole(self._spans, self._kept, self._objects)
            self._tell_hole_changed()

    def _tell_hole_changed(self) -> None:
        self._hole_changed.set()
        self._hole_changed = asyncio.Event()

    def _finish(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        waiting.over.set()

    def _remove(self, span: Span) -> None:
        self._spans.remove(span)
        if span in self._merging:
            self._abandoned.append(self._merging[0].path)
            self._merging = []
        self._retire(span)

    def _retire(self, span: Span) -> None:
        """Remove the file as soon as no query holds it."""
        span.retired = True
        if not span.users:
            self._throw_away(span)

    def _throw_away(self, span: Span) -> None:
        self._garbage.append(span)
        self.wake()


def _remove_files(spans: list[Span]) -> None:
    for span in spans:
        span.close()
        span.path.unlink(missing_ok=True)
