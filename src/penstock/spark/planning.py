"""Plans of a topic, and the offsets that the options of a read select.

This module also carries out conversations with the broker, with retries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from penstock.client import (
    BrokerRefused,
    BrokerUnreachable,
    Conversation,
    SyncClient,
    TopicPlan,
    get_plan,
    offsets_at,
)
from penstock.formats.plan_api import PlanPartition
from penstock.spark.errors import DataLost, OptionInvalid
from penstock.spark.options import EARLIEST, LATEST, Offsets, SourceOptions

_T = TypeVar("_T")

ATTEMPTS_MAX: Final = 8
RETRY_SECONDS: Final = 0.25
"""Delay before the second attempt; each further delay is twice the last one."""

_clients: dict[str, SyncClient] = {}


def ask_once(broker: str, conversation: Conversation[_T]) -> _T:
    """Carry out a conversation with the broker, over a connection that this process keeps."""
    client = _clients.get(broker)
    if client is None:
        client = _clients[broker] = SyncClient(broker)
    return client.run(conversation)


def ask_broker(
    broker: str,
    conversation: Callable[[], Conversation[_T]],
    retry_seconds: float = RETRY_SECONDS,
) -> _T:
    """Carry out a conversation, and repeat it while the broker is unreachable or busy."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            return ask_once(broker, conversation())
        except (BrokerUnreachable, BrokerRefused) as error:
            busy = isinstance(error, BrokerUnreachable) or error.status in (429, 503)
            if not busy or attempt == ATTEMPTS_MAX - 1:
                raise
            time.sleep(retry_seconds * 2**attempt)
    raise AssertionError("unreachable")


def make_plan(options: SourceOptions, with_objects: bool = True) -> TopicPlan:
    """The current plan of the topic; raises BrokerRefused and BrokerUnreachable."""
    plan: TopicPlan = ask_broker(options.broker, lambda: get_plan(options.topic, with_objects))
    return plan


def selected_offsets(options: SourceOptions, plan: TopicPlan) -> dict[int, tuple[int, int]]:
    """The range of offsets of each partition that a batch read returns, without empty ranges.

    Raises DataLost and OptionInvalid.
    """
    known = {item.partition_id: item for item in plan.partitions}
    starting, ending = starting_offsets(options, plan), ending_offsets(options, plan)
    ranges = {}
    for number, item in known.items():
        first, next_ = starting[number], ending[number]
        for name, offset in (("starting", first), ("ending", next_)):
            if offset > item.next_offset:
                raise OptionInvalid(
                    f"{name}Offsets: partition {number} ends at {item.next_offset}, before {offset}"
                )
        first = existing_start(options, item, first, next_)
        if first < next_:
            ranges[number] = (first, next_)
    return ranges


def starting_offsets(options: SourceOptions, plan: TopicPlan) -> dict[int, int]:
    """The first offset of each partition that the options select."""
    known = {item.partition_id: item for item in plan.partitions}
    by_time = _by_time(options, options.starting_us, known)
    return resolved(options.starting, known, "startingOffsets") if by_time is None else by_time


def ending_offsets(options: SourceOptions, plan: TopicPlan) -> dict[int, int]:
    """The end offset of each partition that the options select."""
    known = {item.partition_id: item for item in plan.partitions}
    by_time = _by_time(options, options.ending_us, known)
    return resolved(options.ending, known, "endingOffsets") if by_time is None else by_time


def existing_start(options: SourceOptions, item: PlanPartition, first: int, next_: int) -> int:
    """The first existing offset of a range.

    Raises DataLost if the range starts before it and `failOnDataLoss` is set.
    """
    if item.start_offset <= first or first >= next_:
        return first
    if options.fail_on_data_loss:
        raise DataLost(str(options.topic), item.partition_id, first, item.start_offset)
    return item.start_offset


def resolved(offsets: Offsets, known: Mapping[int, PlanPartition], option: str) -> dict[int, int]:
    """Offsets by partition; a partition that the option does not name is at its start offset."""
    if isinstance(offsets, int):
        return {number: _number(offsets, item) for number, item in known.items()}
    if unknown := offsets.keys() - known.keys():
        raise OptionInvalid(f"{option} names the unknown partition {min(unknown)}")
    return {number: _number(offsets.get(number, EARLIEST), item) for number, item in known.items()}


def _number(offset: int, item: PlanPartition) -> int:
    return {EARLIEST: item.start_offset, LATEST: item.next_offset}.get(offset, offset)


def _by_time(
    options: SourceOptions, time_us: int | None, known: Mapping[int, PlanPartition]
) -> dict[int, int] | None:
    """By partition, the first offset not older than a time, at most the end offset of the plan."""
    if time_us is None:
        return None
    offsets = ask_broker(options.broker, lambda: offsets_at(options.topic, max(time_us, 0)))
    return {
        item.partition_id: min(item.offset, known[item.partition_id].next_offset)
        for item in offsets
        if item.partition_id in known
    }
