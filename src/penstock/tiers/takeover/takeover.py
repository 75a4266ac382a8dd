"""Continues a topic whose WAL is on another machine, or lost.

The manifest covers what was uploaded. Messages that were acknowledged later are only on the other
disk. Their offsets are not assigned again: every partition continues at the reserved offset, and
the gap is recorded. When the other disk returns, its broker proposes objects that fill the gap
(overtaken_logs.py), and the owner enters them into the manifest (gap_filling.py).
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
from penstock.tiers.manifest.entries import Gap, Head
from penstock.tiers.manifest.entry_index import EntryIndex

FIRST_SEQUENCE: Final = 1 << 16
"""The number of the first WAL file; subjects of uploaded messages are indexed under lower ones."""

_events = structlog.get_logger(__name__)


async def take_over(logs: Logs, topic: TopicName, head: Head, index: EntryIndex) -> Log:
    """Create a log that continues the manifest; its first frame records the gap."""
    state = state_after(topic, head, index)
    for partition, first in list(state.nexts.items()):
        state.skip(partition, head.reserved)
        facts = {"partition": partition, "first": first, "next": head.reserved}
        _events.warning("offsets_skipped", topic=str(topic), **facts)
    return await logs.adopt(topic, state, head.uploaded_frame, FIRST_SEQUENCE)


def skipped_gap(head: Head, known: Iterable[int]) -> Gap | None:
    """The gap that a takeover at this head skips; None if all acknowledged messages are uploaded.

    `known` are the partitions in the manifest.
    """
    if head.durability == Durability.CLOUD.value:
        return None
    partitions = BitMap64(known)
    partitions.run_optimize()
    return Gap(head.lineage, head.uploaded_frame, head.reserved, known=partitions.serialize())


def state_after(topic: TopicName, head: Head, index: EntryIndex) -> LogState:
    """The state of a log at the end of the manifest."""
    state = LogState(str(topic))
    state.durability = Durability(head.durability)
    for entry in index:
        state.last_timestamp = max(state.last_timestamp, entry.last_timestamp)
        for span in entry.ranges:
            state.nexts[span.partition] = max(state.nexts.get(span.partition, 0), span.next)
    for partition in {*head.starts, *head.deletes}:
        # Messages after the last object are lost, deleted or not: no deletion moves the end.
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
    """Whether the manifest was made from this log.

    An old copy of the WAL, which ends before the last upload, would assign offsets again.
    """
    same = head.lineage in ("", log.state.lineage)
    return same and log.writer.durable_number >= head.uploaded_frame
