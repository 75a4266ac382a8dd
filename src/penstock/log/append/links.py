"""Links of applications: each epoch of an application gets its offsets once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from penstock.formats import bodies
from penstock.formats.bodies import LinkBody, LinkPart, ObjectRef, Transaction
from penstock.model.errors import RunInvalid
from penstock.model.limits import PARTITION_ID_MAX
from penstock.model.units import Offset, OffsetRange, PartitionId

Ranges = dict[int, OffsetRange]
"""Offsets by partition."""

Objects: TypeAlias = Mapping[PartitionId, Sequence[ObjectRef]]
"""By partition, the objects whose rows get offsets, in this order."""

_Link = tuple[int, "asyncio.Future[Ranges]"]
"""The epoch of a link and the future of its offsets."""


class Links:
    """The last link of every application, pending or committed.

    `transactions` are the committed ones, in the state of the log.
    """

    def __init__(self, transactions: Mapping[str, Transaction]) -> None:
        self._transactions = transactions
        self._pending: dict[str, list[_Link]] = {}

    def known(self, app: str, epoch: int) -> asyncio.Future[Ranges] | None:
        """The offsets that this or a later epoch of the application got, or None."""
        for linked_epoch, future in self._pending.get(app, ()):
            if epoch <= linked_epoch:
                return asyncio.shield(future)
        done = self._transactions.get(app)
        return _answer(done) if done is not None and epoch <= done.epoch else None

    def note(self, app: str, epoch: int, future: asyncio.Future[Ranges]) -> asyncio.Future[Ranges]:
        """Note a pending link; if it fails, the application may try again.

        The future it returns may be cancelled without harm to the link.
        """
        link = (epoch, future)
        self._pending.setdefault(app, []).append(link)
        future.add_done_callback(lambda _: self._end(app, link))
        return asyncio.shield(future)

    def _end(self, app: str, link: _Link) -> None:
        pending = self._pending[app]
        pending.remove(link)
        if not pending:
            del self._pending[app]
        link[1].exception()  # Retrieved, in case no caller awaits the link any more.


def plan(
    app: str,
    epoch: int,
    objects: Objects,
    next_offset: Callable[[PartitionId], Offset],
    subjects: bytes = b"",
) -> tuple[bytes, Ranges]:
    """The body of a link frame and the offsets that it assigns; raises RunInvalid."""
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
    return bodies.encode(LinkBody(app, epoch, parts, subjects)), ranges


def _answer(known: Transaction) -> asyncio.Future[Ranges]:
    future: asyncio.Future[Ranges] = asyncio.get_running_loop().create_future()
    future.set_result(
        {p: OffsetRange(Offset(first), Offset(next_)) for p, (first, next_) in known.ranges.items()}
    )
    return future
