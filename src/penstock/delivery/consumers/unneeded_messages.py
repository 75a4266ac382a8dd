"""Deletes settled messages from streams with work-queue or interest retention.

In a work queue a message is deleted once its consumer has settled it; with interest retention, once
every consumer whose filters match its subject has. Messages settled in one turn of the event loop
are deleted by one frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from penstock.host.tasks import Tasks
from penstock.model.errors import PenstockError
from penstock.streams import Holder, Rows, Stream

SWEPT_AT_ONCE: Final = 1000

_events = structlog.get_logger(__name__)


class UnneededMessages:
    """Deletes the messages of one stream that no consumer needs."""

    def __init__(self, stream: Stream, holders: Callable[[], Iterable[Holder]]) -> None:
        self._stream, self._holders = stream, holders
        self._settled: dict[int, None] = {}
        self._tasks = Tasks()
        self._working: asyncio.Task[None] | None = None

    @property
    def retained(self) -> bool:
        """Whether settled messages are retained."""
        return self._stream.config.retention == "limits"

    def delete_settled(self, seqs: Sequence[int]) -> None:
        """Delete messages that a consumer has settled, unless another consumer needs them."""
        if self.retained or not seqs:
            return
        self._settled.update(dict.fromkeys(seqs))
        if self._working is None:
            self._working = self._tasks.start(self._work())

    def consumer_deleted(self) -> None:
        """Delete the messages that only a deleted consumer needed."""
        if self._stream.config.retention != "interest":
            return
        floors = [holder.settled_seq for holder in self._holders()]
        stop = min(floors, default=self._stream.last_seq)
        self.delete_settled(range(self._stream.first_offset + 1, stop + 1))

    async def delete_settled_before_start(self) -> None:
        """After a restart, delete messages that were settled but not deleted before it."""
        if self.retained:
            return
        stop = max((holder.reached_seq for holder in self._holders()), default=0)
        offset: int = self._stream.first_offset
        while offset < stop:
            rows = await self._stream.read(offset, SWEPT_AT_ONCE)
            if not isinstance(rows, Rows):
                break
            self.delete_settled(
                [
                    at + 1
                    for at, subject in zip(rows.offsets, rows.subjects, strict=True)
                    if at < stop and self._is_unneeded(at + 1, subject)
                ]
            )
            offset = rows.offsets[-1] + 1

    def _is_unneeded(self, seq: int, subject: bytes) -> bool:
        """Whether consumers match the subject and none of them needs the message."""
        matching = [holder for holder in self._holders() if holder.wants(subject)]
        return bool(matching) and not any(holder.needs(seq) for holder in matching)

    def when_deleted(self, call: Callable[[], None]) -> None:
        """Call when deletions for everything settled so far have finished."""
        if self._working is None:
            call()
        else:
            self._working.add_done_callback(lambda _: call())

    async def close(self) -> None:
        if self._working is not None:
            await asyncio.wait([self._working])

    async def _work(self) -> None:
        # Wait one turn, so that all messages settled in this turn are deleted together.
        await asyncio.sleep(0)
        try:
            while self._settled:
                seqs, self._settled = list(self._settled), {}
                unneeded = await self._unneeded(seqs)
                if unneeded:
                    await self._stream.delete([seq - 1 for seq in unneeded], "acked")
        except PenstockError as error:
            _events.warning("acked_not_deleted", stream=self._stream.name, reason=str(error))
        finally:
            self._working = None

    async def _unneeded(self, seqs: list[int]) -> list[int]:
        if self._stream.config.retention == "workqueue":
            return sorted(seqs)
        free: list[int] = []
        held: list[int] = []
        holders = list(self._holders())
        for seq in sorted(seqs):
            (held if any(holder.needs(seq) for holder in holders) else free).append(seq)
        if held:
            rows = await self._stream.read_offsets([seq - 1 for seq in held])
            free += [
                offset + 1
                for offset, subject in zip(rows.offsets, rows.subjects, strict=True)
                if not any(holder.needs(offset + 1) and holder.wants(subject) for holder in holders)
            ]
        return sorted(free)
