"""The writer of a log: forms groups, has them written and synced, and acknowledges them.

    append -> group -> (end of the loop's turn) stamps -> committer: frames, write, fsync -> acks

One group at a time is in flight. The next one forms meanwhile and is submitted as soon as the first
is durable, with no timer between. Offsets are assigned when a run is appended and become visible
when its group is durable. After any error of the disk everything that was not durable is discarded
and its appends fail; recovery/reopen.py then continues the log in a *new* file, because bytes on
which an fsync failed are never trusted again.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.formats.frames import Kind
from penstock.host.entropy import random_u32
from penstock.host.tasks import Timer
from penstock.log.append.commit import Acks, Commit
from penstock.log.append.group import Group, Record, Sealed
from penstock.log.append.links import Ranges
from penstock.log.files.wal_files import ActiveFile, Rotation
from penstock.log.shared.engine import Engine
from penstock.log.state import LogState
from penstock.model.errors import AppendQueueFull, LogReadOnly, PenstockError
from penstock.model.limits import OFFSET_MAX
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Microseconds, Offset, OffsetRange, PartitionId


class Writer:
    """Makes runs and records of one log durable.

    Calls `committed(frames, active)` before a group is acknowledged, `rotated(old, new)` when a
    new file was begun, and `failed(error)` when the disk or the fence refused a group; `failed`
    must call `discard`.
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
        self._engine, self._settings = engine, engine.settings
        self._open_files = engine.open_files
        self._directory = directory
        self._state = state
        self._committed, self._rotated, self._failed = committed, rotated, failed
        self._loop = asyncio.get_running_loop()
        self._active: ActiveFile | None = None
        self._durable_number = 0
        self._epoch = 0
        self._nexts: dict[int, int] = {}
        self._group = Group()
        self._acks: Acks = []
        self._pending_bytes = 0
        self._in_flight: Commit | None = None
        self._scheduled = False
        self._rotate_now = False
        self._idle_timer = Timer(self._idle)
        self._delay_timer = Timer(self._end_of_turn)
        self._unmarked = False
        self._quiet = False
        self._room: list[asyncio.Future[None]] = []
        self._flushing: list[asyncio.Future[None]] = []
        self._for_upload: deque[Commit] | None = None
        self.may_ack: Callable[[], bool] = _always
        """Whether appends may be acknowledged now; see `fence`."""
        self.offset_limit = OFFSET_MAX
        """Offsets from here on are not reserved for this broker."""

    @property
    def active(self) -> ActiveFile | None:
        """The file that is written to; None while the disk takes no writes."""
        return self._active

    @property
    def durable_number(self) -> int:
        """The number of frames of the log that are durable."""
        return self._durable_number

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def fence(self, may_ack: Callable[[], bool]) -> None:
        """Acknowledge a group only if `may_ack()` returns True once the group is durable.

        A later call replaces the fence of an earlier epoch; a fence is never removed.
        """
        self.may_ack = may_ack

    def hold_for_upload(self) -> None:
        """Acknowledge groups only when they are uploaded: durability `cloud`."""
        self._for_upload = deque()

    def uploaded(self, number: int) -> None:
        """Acknowledge the frames below `number`: they are in objects that the manifest names."""
        while self._for_upload and self._for_upload[0].next_number <= number:
            self._acknowledge(self._for_upload.popleft())

    def give_up_uploads(self, error: PenstockError) -> None:
        """Fail the appends that wait for their upload: another broker decides their fate."""
        held: deque[Commit] = self._for_upload or deque()
        while held:
            commit = held.popleft()
            self._pending_bytes -= commit.size_bytes
            for future, _ in commit.acks:
                if not future.done():
                    future.set_exception(error)
        self._room = _wake(self._room)

    def attach(self, active: ActiveFile, durable_number: int, epoch: int) -> None:
        """Write to `active` from now on; the log has `durable_number` durable frames."""
        self._active = active
        active.created_ns = self._engine.clock.monotonic_ns()
        self._open_files.put_back(active)
        self._epoch = epoch
        self.resume(durable_number)

    def resume(self, durable_number: int) -> None:
        """Continue after this many durable frames, once there is a file to write to."""
        self._durable_number = durable_number
        self._nexts = dict(self._state.nexts)

    def detach(self) -> None:
        """Write to no file from now on."""
        self._open_files.forget(self._active)
        self._active = None
        self._idle_timer.stop()

    def next_offset(self, partition: PartitionId) -> Offset:
        """The offset that the next run of the partition gets, durable or not."""
        return Offset(self._nexts.get(partition, self._state.floor))

    def append(self, run: Run | ColumnRun) -> asyncio.Future[OffsetRange]:
        """Assign offsets to the run; the future completes when it is durable.

        Raises RunInvalid, AppendQueueFull or LogReadOnly, and then nothing has happened.
        """
        size_bytes = run.measure()
        self.check_room(size_bytes)
        first = Offset(self._nexts.get(run.partition, self._state.floor))
        next_ = Offset(first + run.count)
        if next_ > self.offset_limit:
            raise _unreserved(self._state.topic)
        self._group.add(run, first, size_bytes, self._settings.frame_bytes_max)
        self._nexts[run.partition] = next_
        return self._promise(size_bytes, OffsetRange(first, next_))

    def record(self, record: Record, next_offset: Offset, result: object = None) -> Any:
        """Append a frame that is no batch; its partition continues at `next_offset`.

        Returns a future that completes with `result` when the frame is durable.
        """
        size_bytes = len(record.body)
        if record.kind is not Kind.DELETE:
            # A deletion frees space, and the append that needs it waits for it.
            self.check_room(size_bytes)
        self._nexts[record.partition] = next_offset
        self._group.record(record)
        return self._promise(size_bytes, result)

    def link(self, body: bytes, ranges: Ranges) -> asyncio.Future[Ranges]:
        """Append a link frame that assigns these offsets; raises like `append`."""
        self.check_room(len(body))
        rows = sum(offsets.messages for offsets in ranges.values())
        record = Record(Kind.LINK, PartitionId(0), Offset(0), rows, body)
        if any(offsets.next > self.offset_limit for offsets in ranges.values()):
            raise _unreserved(self._state.topic)
        for partition, offsets in ranges.items():
            self._nexts[partition] = offsets.next
        self._group.record(record, ranges)
        return self._promise(len(body), ranges)

    async def room(self, size_bytes: int = 1) -> None:
        """Wait until a run of this size would not be refused because the queue is full."""
        while not self._has_room(size_bytes):
            future = self._loop.create_future()
            self._room.append(future)
            await future

    async def flush(self) -> None:
        """Wait until everything that was appended is durable or has failed."""
        while self._in_flight is not None or self._group.items:
            future: asyncio.Future[None] = self._loop.create_future()
            self._flushing.append(future)
            await future

    def rotate(self) -> None:
        """Begin a new file with the next group, or at once if there is none."""
        self._rotate_now = True
        self._schedule()

    def checkpoint(self, flags: int = 0) -> asyncio.Future[None]:
        """Write a checkpoint, which records how many frames are durable."""
        ends = self._state.take_ends()
        self._group.record(Record(Kind.CHECKPOINT, PartitionId(0), Offset(0), 0, ends, flags))
        return self._promise(0, None)

    def discard(self, error: PenstockError) -> None:
        """Fail and forget everything that is not durable; its offsets are assigned again."""
        acks = self._acks + (self._in_flight.acks if self._in_flight else [])
        self._group, self._acks, self._in_flight = Group(), [], None
        self._pending_bytes = sum(commit.size_bytes for commit in self._for_upload or ())
        self._nexts = dict(self._state.nexts)
        for future, _ in acks:
            if not future.done():
                future.set_exception(error)
        self._room = _wake(self._room)
        self._flushing = _wake(self._flushing)

    def finish(self, commit: Commit, error: OSError | None) -> None:
        """Handle the committer's result, on the event loop."""
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
        if self._for_upload is None:
            self._acknowledge(commit)
        else:
            self._for_upload.append(commit)
        self._seal()
        if self._in_flight is None:
            self._flushing = _wake(self._flushing)
        if self._unmarked and self._idle_timer.when is None:
            self._idle_timer.after(self._settings.idle_seconds)

    def _acknowledge(self, commit: Commit) -> None:
        self._pending_bytes -= commit.size_bytes
        took_ns = self._engine.clock.monotonic_ns() - commit.begun_ns
        self._engine.counters.append_ms.observe(took_ns / 1e6)
        for future, result in commit.acks:
            if not future.done():
                future.set_result(result)
        self._room = _wake(self._room)

    def check_room(self, size_bytes: int) -> None:
        """Raise AppendQueueFull if the queue has no room for `size_bytes` more."""
        if self._pending_bytes and not self._has_room(size_bytes):
            limit = self._settings.pending_bytes_max
            raise AppendQueueFull(self._state.topic, self._pending_bytes, limit)

    def _has_room(self, size_bytes: int) -> bool:
        pending = self._pending_bytes
        return not pending or pending + size_bytes <= self._settings.pending_bytes_max

    def _promise(self, size_bytes: int, result: object) -> asyncio.Future[Any]:
        self._pending_bytes += size_bytes
        future = self._loop.create_future()
        self._acks.append((future, result))
        self._schedule()
        return future

    def _schedule(self) -> None:
        if self._scheduled or self._in_flight is not None:
            return
        self._scheduled = True
        if self._settings.sync_delay_seconds:
            self._delay_timer.after(self._settings.sync_delay_seconds)
        else:
            self._loop.call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._scheduled = False
        if self._in_flight is None and self._active is not None:
            self._seal()

    def _seal(self) -> None:
        """Submit the group to the committer, with a rotation if one is due."""
        active = self._active
        assert active is not None
        rotating = self._must_rotate(active)
        self._rotate_now = False
        if not self._group.items and not rotating:
            return
        group, acks = self._group, self._acks
        self._group, self._acks = Group(), []
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
        self._in_flight = Commit(
            self._open_files,
            self.finish,
            active,
            rotation,
            group.stamp(now, floor),
            group.bodies,
            mark,
            number,
            self._epoch,
            acks,
            group.size_bytes,
            self._engine.clock.monotonic_ns(),
        )
        self._engine.committer.submit(self._in_flight)

    def _must_rotate(self, active: ActiveFile) -> bool:
        if not active.used:
            return False
        full = active.file.end + self._group.size_bytes > self._settings.file_bytes_max
        return full or self._rotate_now

    def _idle(self) -> None:
        """Write a checkpoint if the last frames have none after them and nothing is appended."""
        if self._active is None or not self._unmarked:
            return
        if self._quiet and self._in_flight is None:
            self.checkpoint().add_done_callback(asyncio.Future.exception)
            return
        self._quiet = True
        self._idle_timer.after(self._settings.idle_seconds)


def _unreserved(topic: str) -> LogReadOnly:
    return LogReadOnly(topic, "offsets could not be reserved in the metadata")


def _always() -> bool:
    return True


def _wake(futures: list[asyncio.Future[None]]) -> list[asyncio.Future[None]]:
    """Complete the futures; return an empty list to replace them."""
    for future in futures:
        if not future.done():
            future.set_result(None)
    return []
