"""Finds which WAL files of a directory belong together, and where their chain is broken.

The header of every file names its predecessor and the predecessor's durable end. A file that no
other file names was begun during a disk error and has nothing that was acknowledged. A file that is
missing or ends too early breaks the chain; files after the break still count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from penstock.formats.frames import FileHeader
from penstock.formats.paths import parse_wal_name
from penstock.host.disk import Disk
from penstock.log.files.scans import read_header
from penstock.log.files.wal_files import WalFile
from penstock.model.errors import FormatError, VersionUnknown

LEAD_BYTES: Final = 64 << 10
"""How much of a file is read to find its header, even if that is damaged."""


@dataclass(slots=True)
class Chain:
    """Files from the oldest to the newest, each up to the end that its successor names."""

    files: list[WalFile]
    broken: list[int] = field(default_factory=list)
    """Sequences of files that end too early or whose successor is missing."""
    damaged: list[Path] = field(default_factory=list)
    """Files whose header is not intact."""
    strangers: list[Path] = field(default_factory=list)
    """Files whose header does not match their name, such as copies: not part of the log."""


class _Known(NamedTuple):
    path: Path
    header: FileHeader
    size: int


def find_chain(disk: Disk, paths: list[Path]) -> Chain:
    """The chain that ends with the last of these files.

    Raises FormatError if that file is unreadable or any file has a later version.
    """
    result = Chain([])
    known = _read_headers(disk, paths, result)
    sequence = max(known)
    end = seal = 0
    while True:
        path, header, size = known[sequence]
        if size < end:
            result.broken.append(sequence)
        result.files.append(
            WalFile(path, header, min(end or size, size), seal if seal < size else 0)
        )
        older = [other for other in known if other < sequence]
        if not older or not header.previous_back:
            break
        end, seal = header.previous_end, header.previous_seal
        sequence -= header.previous_back
        if sequence not in known:
            sequence, end, seal = max(older), 0, 0
            result.broken.append(sequence)
    result.files.reverse()
    return result


def _read_headers(disk: Disk, paths: list[Path], result: Chain) -> dict[int, _Known]:
    known: dict[int, _Known] = {}
    for path in paths:
        named = parse_wal_name(path.name)
        assert named is not None, path
        fd = disk.open_read(path)
        try:
            size = disk.size(fd)
            header, intact = read_header(disk.read(fd, min(size, LEAD_BYTES), 0), path)
        except VersionUnknown:
            raise
        except FormatError:
            if path == paths[-1]:
                raise
            result.damaged.append(path)
            continue
        finally:
            disk.close(fd)
        if (header.sequence, header.first_frame) != named:
            result.strangers.append(path)
            continue
        if not intact:
            result.damaged.append(path)
        known[header.sequence] = _Known(path, header, size)
    if not known:
        raise FormatError(
            f"{paths[-1].name}: its header does not match its name; the file is a copy"
        )
    return known
