"""Recovery of 1 GB of WAL after a stop, with cold files.

`opened` is a normal start: Logs.open, which follows the chain of sealed files and scans only the
last one. `scanned` is the worst case: `scan_file` reads every file and verifies every frame, as for
a file without a seal. Frames have 4096 or 256 messages. The most expensive file has nearly 64 MiB
and one message in each frame: it is the active file, so opening it scans it and builds its frame
table.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from bench.report import Cell, Report, Table, Target
from bench.workload import directory, fill, make_cold, on_loop, opened, wal_files
from penstock.host.disk import Disk
from penstock.log.files.scans import scan_file

SECONDS_MAX: Final = 10
FILE_BYTES: Final = 64 << 20


def run(quick: bool) -> Report:
    size_bytes = (128 << 20) if quick else 1_000_000_000
    cases = [(4096, size_bytes), (256, size_bytes), (1, FILE_BYTES - (1 << 20))]
    rows = [_case(messages, size) for messages, size in cases]
    table = Table(
        "recover: cold WAL files, 128-byte messages",
        [
            "messages in a frame",
            "files",
            "MB",
            "opened s",
            "scanned s",
            "scanned MB/s",
            "scanned frames/s",
        ],
        rows,
    )
    return Report([table], [target for row in rows for target in _targets(row)])


def _targets(row: list[Cell]) -> list[Target]:
    messages, _, size_mb, *seconds = row
    of = f"{size_mb:.0f} MB, frames of {messages}"
    return [
        Target(
            f"recover: {of}, {how} in under {SECONDS_MAX} s", f"{spent:.2f} s", spent < SECONDS_MAX
        )
        for how, spent in zip(("opened", "scanned whole"), seconds[:2], strict=True)
        if isinstance(spent, float)
    ]


def _case(messages: int, size_bytes: int) -> list[Cell]:
    with directory() as path:
        on_loop(fill(path, size_bytes, messages))
        files = wal_files(path)
        size_mb = sum(file.stat().st_size for file in files) / 1e6
        make_cold(files)
        opened_s = on_loop(_open(path))
        make_cold(files)
        begun = time.perf_counter()
        frames = sum(_scan(file) for file in files)
        scanned_s = time.perf_counter() - begun
    speeds = [size_mb / scanned_s, frames / scanned_s]
    return [messages, len(files), size_mb, opened_s, scanned_s, *speeds]


async def _open(path: Path) -> float:
    begun = time.perf_counter()
    async with opened(path):
        return time.perf_counter() - begun


def _scan(path: Path) -> int:
    scanned = scan_file(Disk(), path, None, 0)
    assert not scanned.damages, scanned.damages
    return len(scanned.found)
