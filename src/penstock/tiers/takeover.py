"""Go on with a topic whose WAL is on another machine, or lost.

What was uploaded is in the manifest. What was acknowledged after that is on the other disk only;
its offsets are not given out again: every partition goes on at the reservation, and the gap is
recorded. When the other disk returns, its broker proposes objects that fill the gap (overtaken.py),
and the owner enters them into the manifest (returned.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog
from pyroaring import BitMap64

from penstock.formats.bodies import Transaction
from penstock.log import Log, Logs, LogState
from penstock.model.names import TopicName
from penstock.model.resources import Durability
from penstock.model.units import Offset, PartitionId
from penstock.tiers.entries import EntryIndex, Gap, Head

FIRST_SEQUENCE: Final = 1 << 16
"""Of the WAL files: subjects of what is in objects already are indexed under the numbers before."""

_events = structlog.get_logger(__name__)


async def take_over(logs: Logs, topic: TopicName, head: Head, index: EntryIndex) -> Log:
    """A log that continues the manifest; its first frame records the gap."""
    state = state_of(topic, head, index)
    for partition, first in list(state.nexts.items()):
        state.skip(partition, head.reserved)
        facts = {"partition": partition, "first": first, "next": head.reserved}
        _events.warning("offsets_skipped", topic=str(topic), **facts)
    return await logs.adopt(topic, state, head.uploaded_frame, FIRST_SEQUENCE)


def gap_of(head: Head, known: Iterable[int]) -> Gap | None:
    """What a takeover at this head skips; None where every acknowledged message is in objects.

    `known` are the partitions that the manifest knows.
    """
    if head.durability == Durability.CLOUD.value:
        return None
    partitions = BitMap64(known)
    partitions.run_optimize()
    return Gap(head.lineage, head.uploaded_frame, head.reserved, known=partitions.serialize())


def state_of(topic: TopicName, head: Head, index: EntryIndex) -> LogState:
    """The state of a log at the end of the manifest."""
    state = LogState(str(topic))
    state.durability = Durability(head.durability)
    for entry in index:
        state.last_timestamp = max(state.last_timestamp, entry.last_timestamp)
        for span in entry.ranges:
            state.nexts[span.partition] = max(state.nexts.get(span.partition, 0), span.next)
    for partition in {*head.starts, *head.deletes}:
        # What was deleted behind the last object was lost like its neighbours: it is no end.
        start, bitmap = head.starts.get(partition, 0), head.deletes.get(partition, b"")
        state.restore(PartitionId(partition), Offset(start), bitmap, Offset(0))
    state.transactions = {
        app: Transaction(epoch, dict(ranges), state.last_timestamp)
        for app, (epoch, ranges) in head.transactions.items()
    }
    for transaction in state.transactions.values():
        for partition, (_, next_) in transaction.ranges.items():
            state.nexts[partition] = max(state.nexts.get(partition, 0), next_)
    state.floor = head.reserved
    return state


def continues(log: Log, head: Head) -> bool:
    """Whether the log is what the manifest was made from.

    The same WAL of before the last upload, an old copy, would give out offsets again.
    """
    same = head.lineage in ("", log.state.lineage)
    return same and log.writer.durable_number >= head.uploaded_frame
