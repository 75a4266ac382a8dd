"""Memory that one process writes and another reads without a copy."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class SharedFile(NamedTuple):
    """Identifies shared memory to another process.

    When the memory is gone, its path may refer to another file, so that device and inode are
    compared when it is opened.
    """

    path: str
    device: int
    inode: int


@contextmanager
def shared_memory() -> Iterator[SharedFile]:
    """Create a file in memory (or a temporary file, on systems without `memfd`).

    It is removed at the end of the block; mapped views stay valid.
    """
    named = not hasattr(os, "memfd_create")
    if named:
        fd, path = tempfile.mkstemp(prefix="penstock-")
    else:
        fd = os.memfd_create("penstock")
        path = f"/proc/{os.getpid()}/fd/{fd}"
    try:
        facts = os.fstat(fd)
        yield SharedFile(path, facts.st_dev, facts.st_ino)
    finally:
        if named:
            os.unlink(path)
        os.close(fd)


@contextmanager
def writable_path(file: SharedFile) -> Iterator[str]:
    """A path for opening the memory within this block; raises FileNotFoundError if it is gone."""
    fd = _open(file, os.O_WRONLY)
    try:
        yield f"/dev/fd/{fd}"
    finally:
        os.close(fd)


def mapped_view(file: SharedFile) -> memoryview:
    """Map the current content, which stays as long as the view; raises FileNotFoundError."""
    fd = _open(file, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ) if size else b"")
    finally:
        os.close(fd)


def _open(file: SharedFile, flags: int) -> int:
    fd = os.open(file.path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    facts = os.fstat(fd)
    if (facts.st_dev, facts.st_ino) == (file.device, file.inode):
        return fd
    os.close(fd)
    raise FileNotFoundError(errno.ENOENT, "the shared memory is gone", file.path)
