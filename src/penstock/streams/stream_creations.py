"""Streams that are being created: publishes to their subjects and conflicting requests wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.model.subject_tree import SubjectTree
from penstock.streams.unopened_streams import UnopenedStreams
from penstock.wire.jetstream.stream_config import StreamConfig


class StreamCreations:
    """The streams that are being created, by name and by subject."""

    def __init__(self, unopened: UnopenedStreams, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a creation begins or ends."""
        self._unopened, self._on_change = unopened, on_change
        self._by_name: dict[str, asyncio.Future[None]] = {}
        self._by_subject: SubjectTree[asyncio.Future[None]] = SubjectTree()
        """Futures that complete when the creation has succeeded or failed."""

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def begin(self, config: StreamConfig) -> Callable[[], None]:
        """Register a stream that is being created; returns the function that ends this."""
        creation: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._by_name[config.name] = creation
        for subject in config.subjects:
            self._by_subject.add(subject.encode(), creation)
        self._on_change()

        def end() -> None:
            del self._by_name[config.name]
            for subject in config.subjects:
                self._by_subject.remove(subject.encode(), creation)
            self._on_change()
            creation.set_result(None)

        return end

    def of_subject(self, subject: bytes) -> asyncio.Future[None] | None:
        """Completes when the stream of a subject is created; None if none is being created."""
        return next(iter(self._by_subject.find(subject)), None) if self._by_name else None

    async def wait_for(self, name: str, subjects: Sequence[str]) -> None:
        """Wait while a stream of this name, or with one of these subjects, is being created or
        opened.
        """
        while (conflict := self._conflict(name, subjects)) is not None:
            await asyncio.wait([conflict])

    def _conflict(self, name: str, subjects: Sequence[str]) -> asyncio.Future[None] | None:
        conflict = self._by_name.get(name) or self._unopened.open(name)
        for subject in map(str.encode, subjects):
            if conflict is not None:
                break
            conflict = next(iter(self._by_subject.colliding(subject)), None)
            if conflict is None:
                conflict = self._unopened.open_first(self._unopened.colliding(subject))
        return conflict
