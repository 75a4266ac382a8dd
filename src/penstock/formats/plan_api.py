"""JSON of plans, links and compactions, for engines that access the bucket directly."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from penstock.formats.api import Offset, TopicReply

APP_CHARACTERS_MAX = 200
LINK_OBJECTS_MAX = 10_000
"""Objects of one link; the frame of the link describes each of them."""


class StoreReply(Struct, frozen=True):
    """Where the objects of a topic are, without credentials."""

    backend: str
    """`s3`, `gcs`, `azblob`, `fs` or `memory`; only the broker can access `memory`."""
    root: str = ""
    """A directory, or SCHEME://BUCKET/PREFIX."""
    endpoint: str = ""
    region: str = ""
    addressing: str = ""
    account: str = ""
    access: str = ""
    """`anonymous` if the bucket needs no credentials."""


class PlanPartition(Struct):
    """A partition at the time of the plan."""

    partition_id: int
    partition_value: Any
    start_offset: int
    """The log start offset."""
    next_offset: int
    """The high watermark: all offsets below it are committed."""
    hot_offset: int
    """The first offset that is in no object; messages from here on have to be fetched."""
    deleted: str = ""
    """Offsets from the start on without a message, deleted or in gaps: a 64-bit roaring bitmap in
    its portable form as base64; empty without such offsets.
    """


class PlanObject(Struct):
    """An object of the manifest."""

    key: str
    size: int
    etag: str | None
    crc32c: int
    rows: int
    ranges: list[tuple[int, int, int]]
    """Partition, first offset and next offset of each partition in the object."""
    first_timestamp: int
    last_timestamp: int
    """Microseconds since 1970."""
    created: int
    """Creation time of the object, in microseconds since 1970."""
    epoch: int
    first_frame: int
    next_frame: int
    """An object that replaces this one must have the same epoch and frames in its metadata."""
    linked: bool
    """The rows have no offsets: the n-th row has the n-th offset of the only range, the first
    timestamp and, without a subject of its own, the topic's id as subject.
    """
    after_gap: bool = False
    """The messages of a returning disk may come between this object and the ones before it; no
    object may replace objects on both sides.
    """


class PlanReply(Struct):
    """A page of a plan; all pages describe the same moment."""

    topic: TopicReply
    store: StoreReply | None
    """None if messages are only in the memory of the broker."""
    partitions: list[PlanPartition]
    objects: list[PlanObject]
    next_page_token: str = ""


class TimeOffset(Struct):
    """The first offset of a partition at or after a time."""

    partition_id: int
    partition_value: Any
    offset: int


class TimeOffsetList(Struct):
    """A page of partitions."""

    offsets: list[TimeOffset]
    next_page_token: str = ""


class StagedObject(Struct, forbid_unknown_fields=True):
    """A Parquet file in the bucket whose rows have no offsets yet."""

    key: str
    rows: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
    size_bytes: Annotated[int, Meta(ge=1, le=(1 << 40))]
    crc32c: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
    etag: str | None = None
    partition_value: Any = None


class LinkRequest(Struct, forbid_unknown_fields=True):
    """POST .../links; `epoch` is an increasing number of the batch of `app`."""

    app: Annotated[str, Meta(min_length=1, max_length=APP_CHARACTERS_MAX)]
    epoch: Offset
    objects: Annotated[list[StagedObject], Meta(max_length=LINK_OBJECTS_MAX)]


class LinkRange(Struct):
    """Offsets of the linked rows of one partition."""

    partition_id: int
    partition_value: Any
    start_offset: int
    next_offset: int


class LinkReply(Struct):
    """The offsets of the rows of a link."""

    ranges: list[LinkRange]
    repeated: bool = False
    """Whether this or a later epoch of the application was linked before, and nothing was done."""


class CompactedObject(Struct, forbid_unknown_fields=True):
    """An object in the broker's format with the rows of several others."""

    key: str
    size_bytes: Annotated[int, Meta(ge=1, le=(1 << 40))]
    crc32c: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
    etag: str | None = None


class CompactRequest(Struct, forbid_unknown_fields=True):
    """POST .../compactions: an object that replaces neighbouring objects."""

    replaces: Annotated[list[str], Meta(min_length=1, max_length=1000)]
    object: CompactedObject


class CompactReply(Struct):
    """The number of objects that the topic has now."""

    objects: int


class SweepRequest(Struct, forbid_unknown_fields=True):
    """An empty object: a sweep has no parameters."""


class SweepReply(Struct):
    """The number of objects and unfinished uploads that were removed."""

    swept: int
