"""The writing side of a log: groups form, are written, become durable, are acknowledged.

    append -> group -> (end of the loop's turn) stamps -> committer: frames, write, fsync -> acks

One group at a time is on its way; the next forms meanwhile and leaves as soon as this one is back,
with no timer between. Offsets are given when a run is taken and become visible when its group is
durable. After any error of the disk all that was not durable is thrown away and its appends fail;
`reopen.py` then brings the log back in a *new* file: what an fsync failed on is never trusted
again.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.formats.frames import Kind, file_checksum
from penstock.host.disk import Disk
from penstock.host.entropy import random_u32
from penstock.log.engine import Engine
from penstock.log.files import ActiveFile, Rotation
from penstock.log.group import Group, Record, Sealed, seal
from penstock.log.links import Ranges
from penstock.log.state import LogState
from penstock.model.batch import Batch, OffsetRange
from penstock.model.errors import AppendQueueFull, LogReadOnly, PenstockError
from penstock.model.limits import OFFSET_MAX
from penstock.model.run import ColumnRun, EncodedRows, Run
from penstock.model.units import Microseconds, Offset, PartitionId

Waiters = list[tuple["asyncio.Future[Any]", object]]
"""Futures of a group, each with what it will answer."""


@dataclass(slots=True)
class Commit:
    """A group on its way; a job of the committer."""

    writer: Writer
    active: ActiveFile
    rotation: Rotation | None
    items: list[Batch | Record]
    bodies: dict[int, EncodedRows]
    mark: int
    first_number: int
    epoch: int
    waiters: Waiters
    taken_bytes: int
    begun_ns: int
    frames: list[Sealed] = field(default_factory=list)

    @property
    def next_number(self) -> int:
        return self.first_number + len(self.items)

    def seal(self) -> None:
        first, bodies = self.first_number, self.bodies
        self.frames = [
            seal(item, bodies.get(place), self.mark, first + place, first, self.epoch)
            for place, item in enumerate(self.items)
        ]

    def write(self, disk: Disk) -> int:
        if self.rotation is not None:
            self.active = self.rotation.carry_out(disk)
        self.seal()
        if self.frames:
            disk.write(self.active.fd, [piece for frame in self.frames for piece in frame.pieces])
        crc = self.active.crc32c
        for place, frame in enumerate(self.frames):
            body = self.bodies.get(place)
            crc = file_checksum(crc, frame.header, frame.pieces, body and body.crc32c)
        self.active.crc32c = crc
        return self.active.fd

    def done(self, error: OSError | None) -> None:
        self.writer.finish(self, error)


class Writer:
    """Takes runs and records of one log and makes them durable.

    `committed(frames, active)` is called before the acks of a group go out, `failed(error)` after
    all that was not durable has been thrown away.
    """

    def __init__(
        self,
        engine: Engine,
        directory: Path,
        state: LogState,
        committed: Callable[[list[Sealed], ActiveFile | None], None],
        rotated: Callable[[ActiveFile, ActiveFile], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._directory = directory
        self._state = state
        self._committed, self._rotated, self._failed = committed, rotated, failed
        self._loop = asyncio.get_running_loop()
        self._active: ActiveFile | None = None
        self._durable_number = 0
        self._epoch = 0
        self._nexts: dict[int, int] = {}
        self._group = Group()
        self._waiters: Waiters = []
        self._pending_bytes = 0
        self._in_flight: Commit | None = None
        self._scheduled = False
        self._rotate_now = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._unmarked = False
        self._quiet = False
        self._room: list[asyncio.Future[None]] = []
        self._flushing: list[asyncio.Future[None]] = []
        self._for_upload: deque[Commit] | None = None
        self.may_ack: Callable[[], bool] = lambda: True
        self.on_commit: Callable[[], None] = lambda: None
        """Called when a group is durable: for who looks after the log only when it changes."""
        self.offset_limit = OFFSET_MAX
        """Offsets from here on are not reserved for this broker yet."""

    @property
    def active(self) -> ActiveFile | None:
        """The file that is written; None while the disk does not let us."""
        return self._active

    @property
    def durable_number(self) -> int:
        """Frames of the log that are on disk for good."""
        return self._durable_number

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def hold_for_upload(self) -> None:
        """Acknowledge only what `uploaded` reports: durability `cloud`."""
        self._for_upload = deque()

    def uploaded(self, number: int) -> None:
        """Frames below `number` are in objects that the manifest names."""
        while self._for_upload and self._for_upload[0].next_number <= number:
            self._acknowledge(self._for_upload.popleft())

    def give_up_uploads(self, error: PenstockError) -> None:
        """Fail what waits for its upload: another broker decides what becomes of it."""
        held: deque[Commit] = self._for_upload or deque()
        while held:
            commit = held.popleft()
            self._pending_bytes -= commit.taken_bytes
            for future, _ in commit.waiters:
                if not future.done():
                    future.set_exception(error)
        self._room = _wake(self._room)

    def attach(self, active: ActiveFile, durable_number: int, epoch: int) -> None:
        """Write to this file from now on; the log has `durable_number` durable frames."""
        self._active = active
        active.created_ns = self._engine.clock.monotonic_ns()
        self._epoch = epoch
        self.take_up(durable_number)

    def take_up(self, durable_number: int) -> None:
        """Go on behind this many durable frames, once there is a file to write to."""
        self._durable_number = durable_number
        self._nexts = dict(self._state.nexts)

    def detach(self) -> None:
        self._active = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def next_offset(self, partition: PartitionId) -> Offset:
        """What the next run of the partition will get, runs on their way counted."""
        return Offset(self._nexts.get(partition, self._state.floor))

    def append(self, run: Run | ColumnRun) -> asyncio.Future[OffsetRange]:
        """Give the run its offsets; the future completes when it is durable.

        Raises RunInvalid or AppendQueueFull, and then nothing has happened.
        """
        size_bytes = run.measure()
        self._admit(size_bytes)
        first = Offset(self._nexts.get(run.partition, self._state.floor))
        next_ = Offset(first + run.count)
        if next_ > self.offset_limit:
            raise self._unreserved()
        self._group.add(run, first, size_bytes, self._settings.frame_bytes_max)
        self._nexts[run.partition] = next_
        return self._promise(size_bytes, OffsetRange(first, next_))

    def record(self, record: Record, next_offset: Offset, answer: object = None) -> Any:
        """Append a frame of another kind; its partition goes on at `next_offset`.

        Returns a future that completes with `answer` when the frame is durable.
        """
        size_bytes = len(record.body)
        if record.kind is not Kind.DELETE:
            # Deletions make room, and come with the messages they make it for.
            self._admit(size_bytes)
        self._nexts[record.partition] = next_offset
        self._group.record(record)
        return self._promise(size_bytes, answer)

    def link(self, body: bytes, ranges: Ranges) -> asyncio.Future[Ranges]:
        """Append a link frame that gives these offsets; raises like `append`."""
        self._admit(len(body))
        rows = sum(given.messages for given in ranges.values())
        record = Record(Kind.LINK, PartitionId(0), Offset(0), rows, body)
        if any(given.next > self.offset_limit for given in ranges.values()):
            raise self._unreserved()
        for partition, given in ranges.items():
            self._nexts[partition] = given.next
        self._group.record(record, ranges)
        return self._promise(len(body), ranges)

    async def room(self, size_bytes: int = 1) -> None:
        """Wait until a run of this size would not be refused for a full queue."""
        while not self._has_room(size_bytes):
            future = self._loop.create_future()
            self._room.append(future)
            await future

    async def flush(self) -> None:
        """Wait until everything taken so far is durable or has failed."""
        while self._in_flight is not None or self._group.items:
            future: asyncio.Future[None] = self._loop.create_future()
            self._flushing.append(future)
            await future

    def rotate(self) -> None:
        """Begin a new file with the next group, or at once when there is none."""
        self._rotate_now = True
        self._schedule()

    def checkpoint(self, flags: int = 0) -> asyncio.Future[None]:
        """Note in the log what is durable."""
        ends = self._state.take_ends()
        self._group.record(Record(Kind.CHECKPOINT, PartitionId(0), Offset(0), 0, ends, flags))
        return self._promise(0, None)

    def throw_away(self, error: PenstockError) -> None:
        """Fail and forget everything that is not durable; its offsets are given again."""
        waiters = self._waiters + (self._in_flight.waiters if self._in_flight else [])
        self._group, self._waiters, self._in_flight = Group(), [], None
        self._pending_bytes = sum(commit.taken_bytes for commit in self._for_upload or ())
        self._nexts = dict(self._state.nexts)
        for future, _ in waiters:
            if not future.done():
                future.set_exception(error)
        self._room = _wake(self._room)
        self._flushing = _wake(self._flushing)

    def finish(self, commit: Commit, error: OSError | None) -> None:
        """On the loop: the disk has answered."""
        if commit is not self._in_flight:
            return
        if commit.rotation is not None and commit.active is not commit.rotation.old:
            commit.active.created_ns = self._engine.clock.monotonic_ns()
            self._active = commit.active
            self._durable_number = commit.active.file.header.first_frame + 1
            self._rotated(commit.rotation.old, commit.active)
        elif commit.rotation is not None and commit.rotation.old.file.seal_position:
            self._durable_number = commit.rotation.seal_number + 1
        if error is None and not self.may_ack():
            error = OSError(errno.EPERM, "this broker may no longer own the topic")
        if error is not None:
            self._failed(error)
            return
        self._in_flight = None
        self._durable_number = commit.next_number
        commit.active.used |= self._unmarked
        self._committed(commit.frames, commit.active)
        self.on_commit()
        if self._for_upload is None:
            self._acknowledge(commit)
        else:
            self._for_upload.append(commit)
        self._seal()
        if self._in_flight is None:
            self._flushing = _wake(self._flushing)
        if self._idle_timer is None and self._unmarked:
            self._idle_timer = self._loop.call_later(self._settings.idle_seconds, self._idle)

    def _acknowledge(self, commit: Commit) -> None:
        self._pending_bytes -= commit.taken_bytes
        took_ns = self._engine.clock.monotonic_ns() - commit.begun_ns
        self._engine.counters.append_ms.observe(took_ns / 1e6)
        for future, answer in commit.waiters:
            if not future.done():
                future.set_result(answer)
        self._room = _wake(self._room)

    def _admit(self, size_bytes: int) -> None:
        if self._pending_bytes and not self._has_room(size_bytes):
            limit = self._settings.pending_bytes_max
            raise AppendQueueFull(self._state.topic, self._pending_bytes, limit)

    def _unreserved(self) -> LogReadOnly:
        return LogReadOnly(self._state.topic, "offsets could not be reserved in the metadata")

    def _has_room(self, size_bytes: int) -> bool:
        pending = self._pending_bytes
        return not pending or pending + size_bytes <= self._settings.pending_bytes_max

    def _promise(self, size_bytes: int, answer: object) -> asyncio.Future[Any]:
        self._pending_bytes += size_bytes
        future = self._loop.create_future()
        self._waiters.append((future, answer))
        self._schedule()
        return future

    def _schedule(self) -> None:
        if self._scheduled or self._in_flight is not None:
            return
        self._scheduled = True
        if self._settings.sync_delay_seconds:
            self._loop.call_later(self._settings.sync_delay_seconds, self._end_of_turn)
        else:
            self._loop.call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._scheduled = False
        if self._in_flight is None and self._active is not None:
            self._seal()

    def _seal(self) -> None:
        """Turn the group into frames and send them off."""
        active = self._active
        assert active is not None
        rotating = self._must_rotate(active)
        self._rotate_now = False
        if not self._group.items and not rotating:
            return
        group, waiters = self._group, self._waiters
        self._group, self._waiters = Group(), []
        now, floor = self._engine.clock.now_us(), Microseconds(self._state.last_timestamp)
        number, mark, rotation = self._durable_number, active.file.header.mark, None
        if rotating:
            mark = random_u32()
            start = self._state.to_start()
            begun = floor or now
            rotation = Rotation(self._directory, active, mark, number, self._epoch, begun, start)
            number += 2
        self._quiet = False
        self._unmarked = group.stores
        begun_ns = self._engine.clock.monotonic_ns()
        self._in_flight = Commit(
            self,
            active,
            rotation,
            group.stamp(now, floor),
            group.bodies,
            mark,
            number,
            self._epoch,
            waiters,
            group.size_bytes,
            begun_ns,
        )
        self._engine.committer.submit(self._in_flight)

    def _must_rotate(self, active: ActiveFile) -> bool:
        if not active.used:
            return False
        full = active.file.end + self._group.size_bytes > self._settings.file_bytes_max
        return full or self._rotate_now

    def _idle(self) -> None:
        """While frames are not covered by a marker: write one as soon as it is quiet."""
        self._idle_timer = None
        if self._active is None or not self._unmarked:
            return
        if self._quiet and self._in_flight is None:
            self.checkpoint().add_done_callback(asyncio.Future.exception)
            return
        self._quiet = True
        self._idle_timer = self._loop.call_later(self._settings.idle_seconds, self._idle)


def _wake(waiting: list[asyncio.Future[None]]) -> list[asyncio.Future[None]]:
    """Complete all and forget them."""
    for future in waiting:
        if not future.done():
            future.set_result(None)
    return []
