"""Memory that one process fills and another reads without a copy."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Place(NamedTuple):
    """Where the memory is, for whoever is to fill it.

    The path may mean another file once the memory is gone, so that what it opens is compared.
    """

    path: str
    device: int
    inode: int


@contextmanager
def shared_memory() -> Iterator[Place]:
    """A file that lies in memory only, where the system has such; gone behind this block, but for
    views of it.
    """
    named = not hasattr(os, "memfd_create")
    if named:
        fd, path = tempfile.mkstemp(prefix="penstock-")
    else:
        fd = os.memfd_create("penstock")
        path = f"/proc/{os.getpid()}/fd/{fd}"
    try:
        facts = os.fstat(fd)
        yield Place(path, facts.st_dev, facts.st_ino)
    finally:
        if named:
            os.unlink(path)
        os.close(fd)


@contextmanager
def writable(place: Place) -> Iterator[str]:
    """A path to open the memory by, within this block; raises FileNotFoundError if it is gone."""
    fd = _open(place, os.O_WRONLY)
    try:
        yield f"/dev/fd/{fd}"
    finally:
        os.close(fd)


def view(place: Place) -> memoryview:
    """What is in the memory now, there as long as the view is; raises FileNotFoundError."""
    fd = _open(place, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ) if size else b"")
    finally:
        os.close(fd)


def _open(place: Place, flags: int) -> int:
    fd = os.open(place.path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    facts = os.fstat(fd)
    if (facts.st_dev, facts.st_ino) == (place.device, place.inode):
        return fd
    os.close(fd)
    raise FileNotFoundError(errno.ENOENT, "the shared memory is gone", place.path)
