"""From options to wanted offsets: what `earliest`, `latest` and times are, and what is lost."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client import plans
from penstock.client.plans import Plan
from penstock.formats.plan_api import PlanPartition
from penstock.spark.errors import DataLost, OptionInvalid
from penstock.spark.options import EARLIEST, LATEST, Offsets, Options
from penstock.spark.reading import patiently


def make_plan(options: Options, with_objects: bool = True) -> Plan:
    """The topic as it is now; raises BrokerRefused, BrokerUnreachable."""
    plan: Plan = patiently(options.broker, lambda: plans.plan(options.topic, with_objects))
    return plan


def wanted(options: Options, plan: Plan) -> dict[int, tuple[int, int]]:
    """The offsets of each partition that a batch read is to give; those without any are left out.

    Raises DataLost, OptionInvalid.
    """
    known = {item.partition_id: item for item in plan.partitions}
    starting, ending = starting_offsets(options, plan), ending_offsets(options, plan)
    found = {}
    for number, item in known.items():
        first, next_ = starting[number], ending[number]
        for name, offset in (("starting", first), ("ending", next_)):
            if offset > item.next_offset:
                raise OptionInvalid(
                    f"{name}Offsets: partition {number} ends at {item.next_offset}, before {offset}"
                )
        first = kept_start(options, item, first, next_)
        if first < next_:
            found[number] = (first, next_)
    return found


def starting_offsets(options: Options, plan: Plan) -> dict[int, int]:
    """Where each partition begins, as numbers."""
    known = {item.partition_id: item for item in plan.partitions}
    by_time = _by_time(options, options.starting_us, known)
    return resolved(options.starting, known, "startingOffsets") if by_time is None else by_time


def ending_offsets(options: Options, plan: Plan) -> dict[int, int]:
    """Where each partition ends, as numbers."""
    known = {item.partition_id: item for item in plan.partitions}
    by_time = _by_time(options, options.ending_us, known)
    return resolved(options.ending, known, "endingOffsets") if by_time is None else by_time


def kept_start(options: Options, item: PlanPartition, first: int, next_: int) -> int:
    """The first offset that is still there; raises DataLost if that is not the one asked for."""
    if item.start_offset <= first or first >= next_:
        return first
    if options.fail_on_data_loss:
        raise DataLost(str(options.topic), item.partition_id, first, item.start_offset)
    return item.start_offset


def resolved(offsets: Offsets, known: Mapping[int, PlanPartition], option: str) -> dict[int, int]:
    """Offsets as numbers; a partition that is not named begins, and ends, at its start."""
    if isinstance(offsets, int):
        return {number: _number(offsets, item) for number, item in known.items()}
    if strange := offsets.keys() - known.keys():
        raise OptionInvalid(f"{option} names the unknown partition {min(strange)}")
    return {number: _number(offsets.get(number, EARLIEST), item) for number, item in known.items()}


def _number(offset: int, item: PlanPartition) -> int:
    return {EARLIEST: item.start_offset, LATEST: item.next_offset}.get(offset, offset)


def _by_time(
    options: Options, time_us: int | None, known: Mapping[int, PlanPartition]
) -> dict[int, int] | None:
    """The first offsets that are not older than a time, as far as the plan goes."""
    if time_us is None:
        return None
    found = patiently(options.broker, lambda: plans.offsets_at(options.topic, max(time_us, 0)))
    return {
        item.partition_id: min(item.offset, known[item.partition_id].next_offset)
        for item in found
        if item.partition_id in known
    }
