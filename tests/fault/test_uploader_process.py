"""The process that encodes objects is killed again and again while a broker uploads."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import SyncClient
from tests.eventually import WAIT_SECONDS
from tests.integration.process import FREE_PORT, Broker

PUSHES: Final = 12
ROWS: Final = 256
ROW_BYTES: Final = 64 << 10
"""A push is half of what makes the broker use the process."""
SETTINGS: Final = (
    *("--set", "storage.uploader.interval_seconds=1"),
    *("--set", "storage.wal.cache.max_bytes=1048576"),
)


class Killer:
    """Kills every child of a process that it sees."""

    def __init__(self, parent: int) -> None:
        self.killed, self._parent, self._over = 0, parent, Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.3):
            for process in Path("/proc").glob("[0-9]*"):
                # It may end while it is looked at.
                with suppress(OSError):
                    if _parent(process) == self._parent:
                        os.kill(int(process.name), signal.SIGKILL)
                        self.killed += 1


def _parent(process: Path) -> int:
    return int((process / "stat").read_text().rpartition(") ")[2].split()[1])


@pytest.mark.feature("T15", "T23")
def test_everything_reaches_the_bucket_though_the_process_that_encodes_is_killed(
    tmp_path: Path,
) -> None:
    pushed: list[bytes] = []
    with (
        Broker("--data", str(tmp_path), *FREE_PORT, *SETTINGS) as broker,
        SyncClient(f"http://{broker.host}:{broker.port}") as client,
    ):
        client.create_topic("rows", ["data:binary"])
        with Killer(broker.process.pid) as killer:
            while killer.killed < 3 or len(pushed) < PUSHES * ROWS:
                rows = [os.urandom(ROW_BYTES) for _ in range(ROWS)]
                client.push("rows", pa.table({"data": rows}))
                pushed += rows
        deadline = time.monotonic() + WAIT_SECONDS
        while broker.figure("penstock_upload_lag_bytes"):
            assert time.monotonic() < deadline, "the uploads did not recover"
            time.sleep(0.1)
        assert broker.figure("penstock_upload_retries_total") >= 1
    files = sorted((tmp_path / "objects").rglob("data-*.parquet"))
    tables = [pq.read_table(file, columns=["offset", "data"]) for file in files]
    found = {
        offset: data
        for table in tables
        for offset, data in zip(*(column.to_pylist() for column in table.columns), strict=True)
    }
    assert [found[offset] for offset in range(len(pushed))] == pushed
