"""Logs over a temporary directory, which are closed after each test."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.log.log import Log
from penstock.log.logs import Logs, SharedLimits
from penstock.log.settings import LogSettings
from penstock.model.names import TopicName
from tests.unit.log.disks import Unsynced

TOPIC = TopicName("default", "default", "t")


class OpenLogs:
    """Makes `Logs` over one directory; opening again is a restart of the broker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: Logs | None = None
        self._copies = 0

    @property
    def topic_directory(self) -> Path:
        return self.directory / "default/default/t"

    def wal_files(self) -> list[Path]:
        return sorted(self.topic_directory.glob("*.log"))

    async def __call__(
        self,
        disk: Disk | None = None,
        clock: Clock | None = None,
        limits: SharedLimits | None = None,
        settings: LogSettings | None = None,
    ) -> Logs:
        """Opened logs; the ones before are closed first. Without a disk nothing is synced."""
        await self.close()
        limits = limits or SharedLimits(reserve_bytes=4096)
        settings = settings or LogSettings()
        logs = Logs(self.directory, settings, limits, disk or Unsynced(), clock)
        self._open = logs
        await logs.open()
        return logs

    async def started(self) -> Logs:
        """Logs that were found and not loaded; the ones before are closed first."""
        await self.close()
        limits = SharedLimits(reserve_bytes=4096)
        logs = self._open = Logs(self.directory, LogSettings(), limits, Unsynced())
        await logs.start()
        return logs

    async def log(
        self,
        disk: Disk | None = None,
        clock: Clock | None = None,
        limits: SharedLimits | None = None,
        settings: LogSettings | None = None,
    ) -> Log:
        """The log `default/default/t`, created if it does not exist."""
        logs = await self(disk, clock, limits, settings)
        return logs.get(TOPIC) or await logs.create(TOPIC)

    async def forget(self) -> None:
        """Begin anew in an empty directory: for tests that run many times."""
        await self.close()
        self._copies += 1
        self.directory = self.directory.with_name(f"wal-{self._copies}")

    def crash(self) -> OpenLogs:
        """A copy of the files as another process would find them if this one were killed now."""
        self._copies += 1
        copy = self.directory.with_name(f"{self.directory.name}-{self._copies}")
        derived = shutil.ignore_patterns("subjects*", "*.tmp")
        shutil.copytree(self.directory, copy, ignore=derived)
        other = OpenLogs(copy)
        _others.append(other)
        return other

    async def close(self) -> None:
        if self._open is not None:
            logs, self._open = self._open, None
            await logs.close()


_others: list[OpenLogs] = []


class InThread:
    """Does what the child process does, without the half second it takes to start one."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(function, *args, **kwargs))

    async def close(self) -> None:
        self._thread.shutdown()


@pytest_asyncio.fixture
async def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenLogs]:
    monkeypatch.setattr("penstock.log.logs.Child", InThread)
    opened = OpenLogs(tmp_path / "wal")
    yield opened
    await opened.close()
    while _others:
        await _others.pop().close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a topic that is not open."""
    path = tmp_path / "topic"
    path.mkdir()
    return path
