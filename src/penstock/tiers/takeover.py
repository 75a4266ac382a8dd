"""Go on with a topic whose WAL is on another machine, or lost.

What was uploaded is in the manifest. What was acknowledged after that is on the other disk only;
its offsets are not given out again: every partition goes on at the reservation, and the hole is
recorded.
"""

from __future__ import annotations

from typing import Final

import structlog

from penstock.formats.bodies import Transaction
from penstock.log.log import Log
from penstock.log.logs import Logs
from penstock.log.state import LogState
from penstock.model.durability import Durability
from penstock.model.names import TopicName
from penstock.model.units import Offset, PartitionId
from penstock.tiers.entries import EntryIndex, Head

FIRST_SEQUENCE: Final = 1 << 16
"""Of the WAL files: subjects of what is in objects already are indexed under the numbers before."""

_events = structlog.get_logger(__name__)


async def take_over(logs: Logs, topic: TopicName, head: Head, index: EntryIndex) -> Log:
    """A log that continues the manifest."""
    state = state_of(topic, head, index)
    log = await logs.adopt(topic, state, head.uploaded_frame, FIRST_SEQUENCE)
    for partition in log.partitions():
        first = log.next_offset(partition)
        await log.skip(partition, Offset(head.reserved), "takeover")
        _events.warning(
            "offsets_skipped",
            topic=str(topic),
            partition=partition,
            first=first,
            next=head.reserved,
        )
    return log


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
