"""Returns messages of overtaken WALs to their topics.

Messages on this disk are proposed to the topic's owner (tiers/takeover/overtaken_logs.py). When
another broker proposes messages for a topic that is served here, the topic is opened again, which
fills its gap (tiers/takeover/gap_filling.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from penstock.formats.paths import topic_directory
from penstock.host.tasks import Tasks
from penstock.metadata import read_all
from penstock.model import names
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.objects import ObjectStore
from penstock.tiers import OVERTAKEN_SUFFIX, OvertakenLogs, decode_returned_log
from penstock.topics.host import TopicHost

RETRY_SECONDS: Final = 1.0
COMPLETE: Final = "/complete"

_events = structlog.get_logger(__name__)


class ReturningLogs:
    """Proposes this broker's messages, and calls `reopen` for topics with proposals of others."""

    def __init__(
        self,
        host: TopicHost,
        store_of: Callable[[TopicName], Awaitable[ObjectStore]],
        reopen: Callable[[TopicName], Awaitable[None]],
    ) -> None:
        self._metadata, self._logs, self._reopen = host.metadata, host.logs, reopen
        self._prefix = host.keys.all_returned()
        self._overtaken = OvertakenLogs(
            host.tiers.host, host.logs.disk, host.metadata, host.keys, store_of
        )
        host.tiers.watch(set_aside=self._overtaken.add)
        self._tasks = Tasks()

    async def start(self, topics: Iterable[TopicName]) -> None:
        """Process the WALs of these topics that were set aside, and watch proposals of others."""
        directories = await self._logs.set_aside_as(OVERTAKEN_SUFFIX)
        for topic in topics if directories else ():
            for directory in directories.get(topic_directory(topic), ()):
                self._overtaken.add(topic, directory)
        self._tasks.start(self._run())

    async def close(self) -> None:
        await self._tasks.cancel()
        await self._overtaken.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except PenstockError as error:
                _events.warning("returned_logs_not_watched", reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        """Process recorded proposals, then every change; raises what the metadata store raises."""
        revision = (await self._metadata.range(self._prefix, limit=1)).revision
        for entry in await read_all(self._metadata, self._prefix):
            await self._reopen_if_complete(entry.key, entry.value)
        async for changes in self._metadata.watch(self._prefix, revision):
            for change in changes:
                if change.value is not None:
                    await self._reopen_if_complete(change.key, change.value)

    async def _reopen_if_complete(self, key: str, value: bytes) -> None:
        if key.endswith(COMPLETE):
            await self._reopen(names.topic(decode_returned_log(value).topic))
