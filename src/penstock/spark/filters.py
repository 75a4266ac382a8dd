"""What filters of a query say about offsets, partitions and times, so that less is read.

Spark applies every filter again to the rows, so reading too much is never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.model.limits import OFFSET_MAX

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BOUNDS: Final = {"offset": ("first", "last"), "timestamp": ("first_us", "last_us")}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Rows outside of these do not match; both ends included."""

    first: int = 0
    last: int = OFFSET_MAX
    partitions: frozenset[int] | None = None
    first_us: int | None = None
    last_us: int | None = None


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """What the filters, all of which must hold, say together."""
    bounds = Bounds()
    for item in filters:
        bounds = _narrowed(bounds, item)
    return bounds


def _narrowed(bounds: Bounds, item: Filter) -> Bounds:
    column = getattr(item, "attribute", ("",))[0]
    if column == "partition":
        return _of_partitions(bounds, item)
    if column not in _BOUNDS:
        return bounds
    low, high = _limits(item)
    first, last = _BOUNDS[column]
    changes: dict[str, Any] = {}
    if low is not None:
        held = getattr(bounds, first)
        changes[first] = _number(low) if held is None else max(held, _number(low))
    if high is not None:
        held = getattr(bounds, last)
        changes[last] = _number(high) if held is None else min(held, _number(high))
    return replace(bounds, **changes)


def _limits(item: Filter) -> tuple[Any, Any]:
    """Lowest and highest value that may match, None for none; bounds are taken as loose ones."""
    if isinstance(item, EqualTo | EqualNullSafe):
        return item.value, item.value
    if isinstance(item, GreaterThan | GreaterThanOrEqual):
        return item.value, None
    if isinstance(item, LessThan | LessThanOrEqual):
        return None, item.value
    if isinstance(item, In) and item.value and None not in item.value:
        return min(item.value), max(item.value)
    return None, None


def _of_partitions(bounds: Bounds, item: Filter) -> Bounds:
    if isinstance(item, EqualTo | EqualNullSafe):
        values = {item.value}
    elif isinstance(item, In):
        values = set(item.value)
    else:
        return bounds
    chosen = frozenset(values - {None})
    return replace(
        bounds, partitions=chosen if bounds.partitions is None else bounds.partitions & chosen
    )


def _number(value: Any) -> int:
    """An offset as it is, a time in microseconds since 1970; without a zone it is UTC."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    return int(value)
