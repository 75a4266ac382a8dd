"""Which status an error has: the one table."""

from __future__ import annotations

from typing import Final

from penstock.doors.http.reply import Reply, error
from penstock.host.child import ChildFailed
from penstock.metadata.interface import (
    HistoryCompacted,
    LeaseExpired,
    MetadataRefused,
    MetadataUnavailable,
)
from penstock.metadata.ownership import NotOwner
from penstock.model import errors
from penstock.model.errors import PenstockError
from penstock.objects.interface import ObjectDamaged, ObjectStoreError
from penstock.tiers.compaction import CompactionStale
from penstock.tiers.object_reader import ObjectDamaged as RowsDamaged
from penstock.topics.plans import PlanGone
from penstock.wire.jetstream.errors import ApiError

BAD_REQUEST: Final = 400
NOT_FOUND: Final = 404
MISDIRECTED: Final = 421
INTERNAL: Final = 500

STATUS: Final[dict[type[PenstockError], int]] = {
    errors.NameInvalid: BAD_REQUEST,
    errors.SchemaInvalid: BAD_REQUEST,
    errors.PartitionInvalid: BAD_REQUEST,
    errors.FetchInvalid: BAD_REQUEST,
    errors.RunInvalid: BAD_REQUEST,
    errors.ResourceUnknown: NOT_FOUND,
    errors.OffsetGone: NOT_FOUND,
    errors.ResourceError: 409,
    CompactionStale: 409,
    PlanGone: 409,
    errors.OwnedElsewhere: MISDIRECTED,
    errors.Overloaded: 429,
    errors.ConfigError: INTERNAL,
    errors.StartRefused: INTERNAL,
    errors.FormatError: INTERNAL,
    errors.DataDamaged: INTERNAL,
    HistoryCompacted: INTERNAL,
    MetadataRefused: INTERNAL,
    ObjectDamaged: INTERNAL,
    RowsDamaged: INTERNAL,
    errors.IndexUnavailable: 503,
    errors.LogError: 503,
    ChildFailed: 503,
    LeaseExpired: 503,
    MetadataUnavailable: 503,
    NotOwner: 503,
    ObjectStoreError: 503,
}
"""By the nearest class: an error has the status of the first of its ancestors that is here."""


class BadRequest(PenstockError):
    """The request as a whole is refused with 400; nothing was done."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"bad request: {reason}")


class Refused(PenstockError):
    """The request as a whole is refused with a status of its own; nothing was done."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def status_of(failure: PenstockError) -> int:
    """500 for what nobody thought of."""
    if isinstance(failure, BadRequest):
        return BAD_REQUEST
    if isinstance(failure, Refused):
        return failure.status
    if isinstance(failure, ApiError):
        return failure.code
    return next((STATUS[kind] for kind in type(failure).__mro__ if kind in STATUS), INTERNAL)


def failed(failure: PenstockError) -> Reply:
    """The reply to a request that failed as a whole."""
    return error(status_of(failure), str(failure))
