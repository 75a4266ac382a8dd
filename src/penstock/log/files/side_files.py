"""Side files: files beside the WAL of a log, for state that must outlive WAL files.

A file is replaced as a whole: after a crash it has its old content or its new one. The files are
deleted with the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from penstock.host.disk import Disk
from penstock.host.threads import WorkerThreads


class SideFiles:
    """The side files of one log."""

    def __init__(self, disk: Disk, readers: WorkerThreads, directory: Path) -> None:
        self._disk, self._readers, self._directory = disk, readers, directory
        self._before_close: tuple[Callable[[], Awaitable[None]], ...] = ()

    def before_close(self, finish: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Await `finish()` when the log closes, after its last frame is written.

        `finish` must not raise. Returns the function that ends this.
        """
        self._before_close = (*self._before_close, finish)

        def cancel() -> None:
            self._before_close = tuple(other for other in self._before_close if other is not finish)

        return cancel

    async def names(self, prefix: str) -> list[str]:
        """Names of the files that start with `prefix`. Raises OSError."""
        found = await self._readers.run(self._disk.names, self._directory)
        return sorted(name for name, _ in found if name.startswith(prefix))

    async def write(self, name: str, data: bytes) -> None:
        """Create or replace a file; durable on return. Raises OSError."""
        await self._readers.run(self._write, name, data)

    async def read(self, name: str) -> bytes | None:
        """The content of a file, None if it does not exist. Raises OSError."""
        return await self._readers.run(self._read, name, 0, None)

    async def read_part(self, name: str, position: int, size: int) -> bytes | None:
        """Up to `size` bytes of a file, None if it does not exist. Raises OSError."""
        return await self._readers.run(self._read, name, position, size)

    async def remove(self, names: Iterable[str]) -> None:
        """Remove files, if they exist. Raises OSError."""
        await self._readers.run(self._remove, list(names))

    async def close(self) -> None:
        """Let the users of the files write for the last time."""
        for finish in self._before_close:
            await finish()

    def _write(self, name: str, data: bytes) -> None:
        self._disk.close(self._disk.create(self._directory / name, [data]))

    def _remove(self, names: list[str]) -> None:
        for name in names:
            self._disk.remove(self._directory / name)

    def _read(self, name: str, position: int, size: int | None) -> bytes | None:
        try:
            fd = self._disk.open_read(self._directory / name)
        except FileNotFoundError:
            return None
        try:
            size = self._disk.size(fd) if size is None else size
            return self._disk.read(fd, size, position)
        finally:
            self._disk.close(fd)
