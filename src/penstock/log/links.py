"""Links made by applications: each epoch of an application gets its offsets once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from penstock.formats import bodies
from penstock.formats.bodies import Link, LinkPart, ObjectRef, Transaction
from penstock.model.batch import OffsetRange
from penstock.model.errors import RunInvalid
from penstock.model.limits import PARTITION_ID_MAX
from penstock.model.units import Offset, PartitionId

Ranges = dict[int, OffsetRange]
"""Offsets by partition."""

Objects: TypeAlias = Mapping[PartitionId, Sequence[ObjectRef]]
"""By partition, objects whose rows get offsets in this order."""

_Made = tuple[int, "asyncio.Future[Ranges]"]
"""The epoch of a link and its offsets."""


class Links:
    """The last link of every application, under way or done.

    `transactions` are those of the log's state, which has what is done.
    """

    def __init__(self, transactions: Mapping[str, Transaction]) -> None:
        self._transactions = transactions
        self._under_way: dict[str, list[_Made]] = {}

    def known(self, app: str, epoch: int) -> asyncio.Future[Ranges] | None:
        """What this or a later epoch of the application got, None if it is new."""
        for made, future in self._under_way.get(app, ()):
            if epoch <= made:
                return asyncio.shield(future)
        done = self._transactions.get(app)
        return _answer(done) if done is not None and epoch <= done.epoch else None

    def note(self, app: str, epoch: int, future: asyncio.Future[Ranges]) -> asyncio.Future[Ranges]:
        """A link is under way; if it fails, it may be tried again. Returns what to wait for: who
        gives up waiting does not undo the link.
        """
        made = (epoch, future)
        self._under_way.setdefault(app, []).append(made)
        future.add_done_callback(lambda _: self._end(app, made))
        return asyncio.shield(future)

    def _end(self, app: str, made: _Made) -> None:
        under_way = self._under_way[app]
        under_way.remove(made)
        if not under_way:
            del self._under_way[app]
        made[1].exception()  # Looked at, also where nobody waits for it any more.


def plan(
    app: str,
    epoch: int,
    objects: Objects,
    next_offset: Callable[[PartitionId], Offset],
    subjects: bytes = b"",
) -> tuple[bytes, Ranges]:
    """The body of a link frame and the offsets it gives; raises RunInvalid."""
    for partition in objects:
        if not 0 <= partition <= PARTITION_ID_MAX:
            raise RunInvalid(f"partition {partition} is not within 0 to {PARTITION_ID_MAX}")
    parts = [LinkPart(p, next_offset(p), list(refs)) for p, refs in objects.items()]
    ranges = {
        part.partition: OffsetRange(
            Offset(part.first_offset), Offset(part.first_offset + part.rows)
        )
        for part in parts
    }
    return bodies.encode(Link(app, epoch, parts, subjects)), ranges


def _answer(known: Transaction) -> asyncio.Future[Ranges]:
    future: asyncio.Future[Ranges] = asyncio.get_running_loop().create_future()
    future.set_result(
        {p: OffsetRange(Offset(first), Offset(next_)) for p, (first, next_) in known.ranges.items()}
    )
    return future
