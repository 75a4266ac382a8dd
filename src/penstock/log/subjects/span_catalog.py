"""The spans of one topic by sequence, and the sealed files whose span is not built yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.log.subjects.memory import Lane
from penstock.log.subjects.span import IndexSpan

Part = dict[int, Lane]
"""The subjects of one file in memory, by partition."""


class SealedFile(NamedTuple):
    """A WAL file that does not grow any more; bytes after `end` do not count."""

    path: Path
    sequence: int
    end: int | None = None


@dataclass(eq=False, slots=True)
class WaitingFile:
    """A sealed file without a span; queries use `part` or, without one, wait."""

    file: SealedFile
    part: Part | None
    edition: int
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class SpanCatalog:
    """Which spans serve queries, which files still wait for theirs, and which are to be removed."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there are files to remove."""
        self._wake = wake
        self.spans: list[IndexSpan] = []
        self.waiting: list[WaitingFile] = []
        self.garbage: list[IndexSpan] = []
        """Retired spans that no query uses: their files are to be removed."""

    @property
    def parts(self) -> list[Part]:
        """The parts in memory of sealed files without a span, oldest first."""
        return [waiting.part for waiting in self.waiting if waiting.part is not None]

    @property
    def unapplied(self) -> set[int]:
        """Sequences of files that must not be removed: their spans are not built yet."""
        return {waiting.file.sequence for waiting in self.waiting}

    def covers(self, sequence: int) -> bool:
        """Whether a span covers this file."""
        return any(span.name.first <= sequence <= span.name.last for span in self.spans)

    def holds(self, partition: int) -> bool:
        """Whether a span has messages of this partition."""
        return any(partition in span.extents for span in self.spans)

    @contextmanager
    def hold(self, partition: int) -> Iterator[list[IndexSpan]]:
        """The spans with this partition, oldest first; their files exist until the context ends."""
        held = [span for span in self.spans if partition in span.extents]
        for span in held:
            span.users += 1
        try:
            yield held
        finally:
            for span in held:
                span.users -= 1
                if span.retired and not span.users:
                    self._discard(span)

    def finish(self, waiting: WaitingFile) -> None:
        self.waiting.remove(waiting)
        waiting.finished.set()

    def retire(self, span: IndexSpan) -> None:
        """Remove the file of a span as soon as no query uses it."""
        span.retired = True
        if not span.users:
            self._discard(span)

    def _discard(self, span: IndexSpan) -> None:
        self.garbage.append(span)
        self._wake()
