"""Links made by applications: each epoch of an application gets its offsets once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from penstock.formats import bodies
from penstock.formats.bodies import ONCE, Link, LinkPart, ObjectRef, Transaction
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

    `transactions` are those of the log's state: what it forgets is forgotten here, too.
    """

    def __init__(self, transactions: Mapping[str, Transaction]) -> None:
        self._transactions = transactions
        self._known: dict[str, _Made] = {
            app: (known.epoch, _done(known)) for app, known in transactions.items()
        }

    def known(self, app: str, epoch: int) -> asyncio.Future[Ranges] | None:
        """What this or a later epoch of the application got, None if it is new."""
        known = self._known.get(app)
        return asyncio.shield(known[1]) if known is not None and epoch <= known[0] else None

    def note(self, app: str, epoch: int, future: asyncio.Future[Ranges]) -> asyncio.Future[Ranges]:
        """A link is under way; if it fails, it may be tried again. Returns what to wait for: who
        gives up waiting does not undo the link.
        """
        self._forget_once()
        before = self._known.get(app)
        self._known[app] = (epoch, future)
        future.add_done_callback(lambda done: self._forget_failed(app, before, done))
        return asyncio.shield(future)

    def _forget_once(self) -> None:
        for app, (_, future) in list(self._known.items()):
            if app.startswith(ONCE) and future.done() and app not in self._transactions:
                del self._known[app]

    def _forget_failed(self, app: str, before: _Made | None, done: asyncio.Future[Ranges]) -> None:
        if app not in self._known or self._known[app][1] is not done or not done.exception():
            return
        if before is None or (before[1].done() and before[1].exception()):
            del self._known[app]
        else:
            self._known[app] = before


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


def _done(known: Transaction) -> asyncio.Future[Ranges]:
    future: asyncio.Future[Ranges] = asyncio.get_running_loop().create_future()
    future.set_result(
        {p: OffsetRange(Offset(first), Offset(next_)) for p, (first, next_) in known.ranges.items()}
    )
    return future
