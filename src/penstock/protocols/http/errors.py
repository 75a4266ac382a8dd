"""Errors as HTTP replies: the errors of HTTP requests, and the status of every error."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType

from penstock.delivery.channels import (
    JobChangeRefused,
    JobLeaseEnded,
    JobsNotReady,
    JobUnknown,
)
from penstock.formats.api import ErrorReply, TopicOwner
from penstock.host.child import ChildFailed
from penstock.metadata import HistoryCompacted, LeaseExpired, MetadataRefused, MetadataUnavailable
from penstock.metadata.ownership import NotOwner
from penstock.model import errors
from penstock.model.errors import PenstockError
from penstock.objects import ObjectDamaged, ObjectStoreError
from penstock.protocols.http.reply import Reply
from penstock.tiers import CompactionStale, ObjectRowsDamaged
from penstock.topics import PlanGone
from penstock.wire.jetstream.errors import ApiError

BAD_REQUEST: Final = 400
NOT_FOUND: Final = 404
MISDIRECTED: Final = 421
INTERNAL: Final = 500


class BadRequest(PenstockError):
    """The request is not valid; it changed nothing."""

    code = "bad_request"

    def __init__(self, reason: str, code: str = "") -> None:
        """`code` is a more specific code of the reason, if there is one."""
        super().__init__(f"bad request: {reason}")
        self.reason, self.code = reason, code or type(self).code


class BodyTooLarge(PenstockError):
    """The body of the request is larger than the limit; the request changed nothing."""

    code = "body_too_large"

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            f"the body is too large: the limit http.max_body_bytes is {bytes_max};"
            " split it into smaller requests"
        )
        self.bytes_max = bytes_max


class ContentUnsupported(PenstockError):
    """The route does not support the content type or encoding of the body; it changed nothing."""

    code = "content_type_unsupported"


class FetchOnly(PenstockError):
    """A fetch node does not serve this request; a broker does."""

    code = "fetch_only"

    def __init__(self, sentence: str = "this node only fetches; ask a broker") -> None:
        super().__init__(sentence)


class MessageUnknown(PenstockError):
    """The topic has no such message."""

    code = "message_not_found"

    def __init__(self, topic: str, description: str) -> None:
        super().__init__(f"topic {topic} has no message {description}")
        self.topic, self.description = topic, description


STATUS: Final[dict[type[PenstockError], int]] = {
    BadRequest: BAD_REQUEST,
    errors.NameInvalid: BAD_REQUEST,
    errors.SchemaInvalid: BAD_REQUEST,
    errors.PartitionInvalid: BAD_REQUEST,
    errors.FetchInvalid: BAD_REQUEST,
    errors.RunInvalid: BAD_REQUEST,
    errors.ResourceUnknown: NOT_FOUND,
    MessageUnknown: NOT_FOUND,
    errors.OffsetGone: NOT_FOUND,
    errors.SignatureRequired: 403,
    errors.ResourceError: 409,
    CompactionStale: 409,
    PlanGone: 409,
    JobChangeRefused: BAD_REQUEST,
    JobLeaseEnded: 409,
    JobUnknown: NOT_FOUND,
    BodyTooLarge: 413,
    ContentUnsupported: 415,
    errors.OwnedElsewhere: MISDIRECTED,
    FetchOnly: MISDIRECTED,
    errors.Overloaded: 429,
    errors.ConfigError: INTERNAL,
    errors.StartRefused: INTERNAL,
    errors.FormatError: INTERNAL,
    errors.DataDamaged: INTERNAL,
    HistoryCompacted: INTERNAL,
    MetadataRefused: INTERNAL,
    ObjectDamaged: INTERNAL,
    ObjectRowsDamaged: INTERNAL,
    errors.IndexUnavailable: 503,
    errors.LogError: 503,
    ChildFailed: 503,
    LeaseExpired: 503,
    MetadataUnavailable: 503,
    JobsNotReady: 503,
    NotOwner: 503,
    ObjectStoreError: 503,
}
"""Statuses by class. A class that is not listed has the status of its nearest base class."""


def status_of(failure: PenstockError) -> int:
    """The status of an error; 500 for a class that the table does not cover."""
    if isinstance(failure, ApiError):
        return failure.status
    return next((STATUS[kind] for kind in type(failure).__mro__ if kind in STATUS), INTERNAL)


def owner_of(failure: PenstockError) -> TopicOwner | UnsetType:
    """The broker that owns the topic, if that is why the request failed."""
    if isinstance(failure, errors.OwnedElsewhere):
        return TopicOwner(failure.broker, failure.address)
    return UNSET


def failed(failure: PenstockError) -> Reply:
    """The reply to a failed request."""
    body = ErrorReply(str(failure), failure.code, owner_of(failure))
    return Reply(status_of(failure), body)
