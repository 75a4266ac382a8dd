"""Copies selected messages of other streams, the sources, into a stream.

origin ─ filter ─ transform of the source ─ transform of the stream ─ stream
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import structlog

from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.model.errors import PenstockError
from penstock.model.subjects import Filter, SubjectMapping
from penstock.streams.copies import Copied, Copies
from penstock.streams.following import RETRY_SECONDS_MAX, Follower, OriginOf, start_offset
from penstock.streams.message_ids import DuplicateWindow
from penstock.streams.rows import Rows
from penstock.streams.source_positions import KIND, Position, SourcePositions
from penstock.streams.stream import Stream
from penstock.wire.jetstream.sourced import identity, mark, source_key
from penstock.wire.jetstream.stream_config import StreamSource

SKIPPED_MAX: Final = 100_000
"""After this many messages that are not selected, the position is written without a copy."""
SETTLED_AT_ONCE: Final = 10_000


class SourceCopy:
    """Copies from one origin into one stream, from `start` on."""

    def __init__(
        self,
        stream: Stream,
        source: StreamSource,
        origin_of: OriginOf,
        clock: Clock,
        copies: Copies,
        positions: SourcePositions,
        loaded: asyncio.Future[None],
    ) -> None:
        self._stream, self.source, self.key = stream, source, source_key(source)
        self._copies, self._positions, self._loaded = copies, positions, loaded
        self._subjects = _Subjects(source)
        self._settled: int | None = None
        """The origin's messages before this offset are copied durably; None while unknown."""
        self._follower = Follower(
            stream.name, source.name, origin_of, clock, self._begin, self._store
        )
        self.start, self.stop = self._follower.start, self._follower.stop

    @property
    def origin(self) -> Stream | None:
        return self._follower.origin

    @property
    def lag(self) -> int:
        """Number of the origin's messages that were not read yet; 0 before the first read."""
        origin, position = self.origin, self._follower.position
        if origin is None or position is None:
            return 0
        return origin.count_all(position, origin.next_offset)

    @property
    def active_ns(self) -> int:
        """Nanoseconds since the origin was last read; -1 if it never was."""
        return self._follower.active_ns

    @property
    def last_seq(self) -> int:
        """Sequence of the last copied message; 0 before the first."""
        position = self._positions.get(self.key)
        return 0 if position is None else position.sequence

    # -- Holder: the origin retains messages until they are copied

    def needs(self, seq: int) -> bool:
        """Whether the message is not copied yet."""
        return self._settled is None or seq > self._settled

    def wants(self, subject: bytes) -> bool:
        return self._subjects.wants(subject)

    @property
    def settled_seq(self) -> int:
        """No message up to this sequence is needed."""
        return self._settled or 0

    @property
    def reached_seq(self) -> int:
        """No message after this sequence was copied."""
        return self._settled or 0

    # -- callbacks of the follower

    async def _begin(self, origin: Stream) -> int:
        await asyncio.shield(self._loaded)
        known = self._positions.get(self.key)
        start = await start_offset(self.source, origin)
        position = start
        if known is not None and known.identity == identity(origin.created_us):
            position = known.next_offset
            if origin.config.retention != "limits":
                await self._release_before(origin, start, position)
        self._settled = position
        return position

    async def _store(self, origin: Stream, rows: Rows) -> None:
        origin_id, next_offset = identity(origin.created_us), rows.offsets[-1] + 1
        chosen = self._subjects.choose(rows)
        if chosen.count:
            await self._copies.store(self._copied(chosen, origin_id))
        self._settled = next_offset
        if chosen.count:
            origin.copied(chosen.seqs)
        self._skip(origin_id, next_offset)

    def _copied(self, rows: Rows, origin_id: str) -> Copied:
        blocks = rows.headers or [b""] * rows.count
        marked = mark(self.key, origin_id, blocks, rows.seqs, rows.subjects)
        subjects = self._subjects.mapped(rows.subjects)
        if self._stream.mapping is not None:
            map_ = self._stream.mapping.map
            subjects = [map_(subject) or subject for subject in subjects]
        return Copied(self.key, origin_id, subjects, marked, rows.payloads, rows.seqs)

    def _skip(self, origin_id: str, next_offset: int) -> None:
        """Advance over messages that are not selected, and write the position now and then, so
        that a restart does not read them again.
        """
        known = self._positions.get(self.key)
        if known is None or known.identity != origin_id:
            known = Position(origin_id, 0, 0)
        if next_offset - known.next_offset >= SKIPPED_MAX:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            self._positions.advance(
                self.key, Position(origin_id, known.sequence, next_offset), done
            )

    async def _release_before(self, origin: Stream, start: int, stop: int) -> None:
        """Notify the origin of messages that were copied before a restart."""
        offset = max(start, origin.first_offset)
        while offset < stop:
            rows = await origin.read(offset, SETTLED_AT_ONCE)
            if not isinstance(rows, Rows):
                return
            copied = self._subjects.choose(rows)
            origin.copied([seq for seq in copied.seqs if seq <= stop])
            offset = rows.offsets[-1] + 1


class _Subjects:
    """Selects messages of an origin by subject, and transforms their subjects."""

    def __init__(self, source: StreamSource) -> None:
        transforms = source.subject_transforms
        subjects = [transform.src for transform in transforms] or [source.filter_subject]
        self._filters = [Filter.parse(subject.encode() or b">") for subject in subjects]
        self._everything = any(filter_.everything for filter_ in self._filters)
        self._mappings = [
            SubjectMapping.parse(transform.src.encode(), transform.dest.encode())
            for transform in transforms
            if transform.dest
        ]

    def wants(self, subject: bytes) -> bool:
        return self._everything or any(filter_.matches(subject) for filter_ in self._filters)

    def choose(self, rows: Rows) -> Rows:
        """The selected messages among these."""
        if self._everything:
            return rows
        selected = {subject for subject in set(rows.subjects) if self.wants(subject)}
        subjects = enumerate(rows.subjects)
        return rows.take([index for index, subject in subjects if subject in selected])

    def mapped(self, subjects: Sequence[bytes]) -> Sequence[bytes]:
        """The subjects as the first matching transform rewrites them."""
        if not self._mappings:
            return subjects
        known = {subject: self._map(subject) for subject in set(subjects)}
        return [known[subject] for subject in subjects]

    def _map(self, subject: bytes) -> bytes:
        mapped = (mapping.map(subject) for mapping in self._mappings)
        return next((target for target in mapped if target is not None), subject)


_events = structlog.get_logger(__name__)


class Sources:
    """The sources of one stream, as its configuration names them."""

    def __init__(
        self, stream: Stream, window: DuplicateWindow, origin_of: OriginOf, clock: Clock
    ) -> None:
        self._stream, self._origin_of, self._clock = stream, origin_of, clock
        self._positions = SourcePositions(stream)
        self._copies = Copies(stream, window, self._positions)
        self._running: dict[str, SourceCopy] = {}
        self._loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks()
        self._loading: asyncio.Task[None] | None = None
        stream.opened.settlements.unused.discard(KIND)

    def __iter__(self) -> Iterator[SourceCopy]:
        """Iterate in the order of the configuration."""
        return iter(self._running.values())

    def configure(self) -> None:
        """Copy from the sources that the stream's configuration names, and from no others.

        A source that stays continues; one that was removed and returns continues from its position.
        """
        configured = {source_key(source): source for source in self._stream.config.sources}
        for key, copy in list(self._running.items()):
            if configured.get(key) != copy.source:
                copy.stop()
                del self._running[key]
        before = self._running
        self._running = {
            key: before[key] if key in before else self._start(source)
            for key, source in configured.items()
        }

    def load_soon(self) -> None:
        """Start to load the positions; nothing is copied before they are known."""
        if self._loading is None:
            self._loading = self._tasks.start(self._load())

    def stop(self) -> None:
        """Stop all copies."""
        for copy in self._running.values():
            copy.stop()
        if self._loading is not None:
            self._loading.cancel()
        self._loaded.cancel()
        self._positions.close()

    def remove(self) -> None:
        """Stop all copies and discard the positions."""
        self.stop()
        self._positions.forget()

    def _start(self, source: StreamSource) -> SourceCopy:
        copy = SourceCopy(
            self._stream,
            source,
            self._origin_of,
            self._clock,
            self._copies,
            self._positions,
            self._loaded,
        )
        copy.start()
        return copy

    async def _load(self) -> None:
        while not self._loaded.done():
            try:
                await self._positions.load(self._running)
                self._loaded.set_result(None)
            except (PenstockError, OSError) as error:
                _events.error("sources_unknown", stream=self._stream.name, reason=str(error))
                await asyncio.sleep(RETRY_SECONDS_MAX)
