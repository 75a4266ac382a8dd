"""Messages that nobody needs any more, in streams that keep them only while somebody does.

A work queue gives each message to one consumer: settled there, it goes. A stream with interest
retention keeps a message until every consumer that wants its subject has settled it. What was
settled in one turn goes in one delete frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog

from penstock.model.errors import PenstockError
from penstock.topics.streams.rows import Rows
from penstock.topics.streams.stream import Stream

SWEPT_AT_ONCE: Final = 1000

_events = structlog.get_logger(__name__)


class Holder(Protocol):
    """A consumer, as far as it keeps messages from going."""

    def needs(self, seq: int) -> bool: ...

    def wants(self, subject: bytes) -> bool: ...

    @property
    def settled_seq(self) -> int:
        """Nothing up to here is needed."""
        ...

    @property
    def reached_seq(self) -> int:
        """Nothing behind this was delivered."""
        ...


class Leftovers:
    """Deletes what is not needed from one stream."""

    def __init__(self, stream: Stream, holders: Callable[[], Iterable[Holder]]) -> None:
        self._stream, self._holders = stream, holders
        self._settled: dict[int, None] = {}
        self._working: asyncio.Task[None] | None = None

    @property
    def kept(self) -> bool:
        """Whether messages stay whoever settles them."""
        return self._stream.config.retention == "limits"

    def settled(self, seqs: Sequence[int]) -> None:
        """A consumer is done with these."""
        if self.kept or not seqs:
            return
        self._settled.update(dict.fromkeys(seqs))
        if self._working is None:
            self._working = asyncio.get_running_loop().create_task(self._work())

    def consumer_gone(self) -> None:
        """What only that one needed goes."""
        if self._stream.config.retention != "interest":
            return
        floors = [holder.settled_seq for holder in self._holders()]
        stop = min(floors, default=self._stream.last_seq)
        self.settled(range(self._stream.first_offset + 1, stop + 1))

    async def sweep(self) -> None:
        """After a restart: what was settled before, and not deleted."""
        if self.kept:
            return
        stop = max((holder.reached_seq for holder in self._holders()), default=0)
        offset: int = self._stream.first_offset
        while offset < stop:
            rows = await self._stream.read(offset, SWEPT_AT_ONCE)
            if not isinstance(rows, Rows):
                break
            self.settled(
                [
                    place + 1
                    for place, subject in zip(rows.offsets, rows.subjects, strict=True)
                    if place < stop and self._unneeded_here(place + 1, subject)
                ]
            )
            offset = rows.offsets[-1] + 1

    def _unneeded_here(self, seq: int, subject: bytes) -> bool:
        """Somebody wanted it, and nobody needs it."""
        wanting = [holder for holder in self._holders() if holder.wants(subject)]
        return bool(wanting) and not any(holder.needs(seq) for holder in wanting)

    def when_gone(self, call: Callable[[], None]) -> None:
        """Call when all that is settled now has been dealt with."""
        if self._working is None:
            call()
        else:
            self._working.add_done_callback(lambda _: call())

    async def close(self) -> None:
        if self._working is not None:
            await asyncio.wait([self._working])

    async def _work(self) -> None:
        # One turn later, so that everything of this turn goes together.
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
