"""The retention limits of a topic."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from penstock.model.limits import RETENTION_SECONDS_MAX

_Limit = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]


class TopicRetention(Struct, frozen=True, forbid_unknown_fields=True):
    """Beyond these limits the oldest messages of a topic are deleted; null is no limit."""

    max_age_seconds: Annotated[float, Meta(gt=0, le=RETENTION_SECONDS_MAX)] | None = None
    max_bytes: _Limit | None = None
    """The limit of the total size of its objects."""
    max_messages: _Limit | None = None
    """The limit of each partition."""
