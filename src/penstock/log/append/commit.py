"""One group of frames on its way to the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.formats.frames import file_checksum
from penstock.host.disk import Disk
from penstock.log.append.group import Record, Sealed, seal
from penstock.log.files.wal_files import ActiveFile, Rotation
from penstock.log.shared.open_files import OpenFiles
from penstock.model.batch import Batch
from penstock.model.run import EncodedRows

Acks = list[tuple["asyncio.Future[Any]", object]]
"""The futures of a group, each with its result."""


@dataclass(slots=True)
class Commit:
    """A group in flight: the job that the committer writes and syncs in its thread."""

    open_files: OpenFiles
    finish: Callable[[Commit, OSError | None], None]
    """Called on the event loop when the group is durable, or with the error."""
    active: ActiveFile
    rotation: Rotation | None
    items: list[Batch | Record]
    bodies: dict[int, EncodedRows]
    mark: int
    first_number: int
    epoch: int
    acks: Acks
    size_bytes: int
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
        fd = self.open_files.take(self.active)
        if self.rotation is not None:
            self.active = self.rotation.carry_out(disk)
            fd = self.active.open(disk)
        self.seal()
        if self.frames:
            disk.write(fd, [piece for frame in self.frames for piece in frame.pieces])
        crc = self.active.crc32c
        for place, frame in enumerate(self.frames):
            body = self.bodies.get(place)
            crc = file_checksum(crc, frame.header, frame.pieces, body and body.crc32c)
        self.active.crc32c = crc
        return fd

    def release(self) -> None:
        self.open_files.put_back(self.active)

    def done(self, error: OSError | None) -> None:
        self.finish(self, error)
