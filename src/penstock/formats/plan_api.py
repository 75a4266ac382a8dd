"""The JSON of plans and links: for readers and writers that work on the bucket past the broker."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from penstock.formats.api import Offset, TopicReply

APP_CHARACTERS_MAX = 200
LINK_OBJECTS_MAX = 10_000
"""Of one link: its frame holds a line about each."""


class StoreReply(Struct, frozen=True):
    """Where a topic's objects lie; credentials are never told."""

    backend: str
    """`s3`, `gcs`, `azblob`, `fs` or `memory`; nobody but the broker reaches the last one."""
    root: str = ""
    """A directory, or SCHEME://BUCKET/PREFIX."""
    endpoint: str = ""
    region: str = ""
    addressing: str = ""
    account: str = ""
    access: str = ""
    """`anonymous` where the bucket asks for no credentials."""


class PlanPartition(Struct):
    """A partition when the plan was made."""

    partition_id: int
    partition_value: Any
    start_offset: int
    """The first offset kept."""
    next_offset: int
    """All offsets below it are committed."""
    hot_offset: int
    """From here on no object has the messages: fetch them."""
    deleted: str = ""
    """Offsets from the start on that have no message, deletions and recorded holes alike: base64
    of a 64-bit roaring bitmap in its portable form; empty when there are none.
    """


class PlanObject(Struct):
    """An object that counts."""

    key: str
    size: int
    etag: str | None
    crc32c: int
    rows: int
    ranges: list[tuple[int, int, int]]
    """Partition, first offset and the offset behind the last, for each partition in it."""
    first_timestamp: int
    last_timestamp: int
    """Microseconds since 1970."""
    created: int
    """The same, of the object."""
    epoch: int
    first_frame: int
    next_frame: int
    """What an object that is made from this one says of itself, too."""
    linked: bool
    """Its rows have no offsets of their own: the n-th has the n-th of its only range, the first
    timestamp, and, unless it has one, the topic's id as its subject.
    """


class PlanReply(Struct):
    """A page of a plan; all pages tell of one moment."""

    topic: TopicReply
    store: StoreReply | None
    """None where messages live in the memory of the broker only."""
    partitions: list[PlanPartition]
    objects: list[PlanObject]
    next_page_token: str = ""


class TimeOffset(Struct):
    """Where a partition's messages of a time begin."""

    partition_id: int
    partition_value: Any
    offset: int


class TimeOffsetList(Struct):
    """A page of partitions."""

    offsets: list[TimeOffset]
    next_page_token: str = ""


class StagedObject(Struct, forbid_unknown_fields=True):
    """A Parquet file that lies in the bucket and has no offsets yet."""

    key: str
    rows: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
    size_bytes: Annotated[int, Meta(ge=1, le=(1 << 40))]
    crc32c: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
    etag: str | None = None
    partition_value: Any = None


class LinkRequest(Struct, forbid_unknown_fields=True):
    """POST .../links; `epoch` numbers the batches of `app`, upwards."""

    app: Annotated[str, Meta(min_length=1, max_length=APP_CHARACTERS_MAX)]
    epoch: Offset
    objects: Annotated[list[StagedObject], Meta(max_length=LINK_OBJECTS_MAX)]


class LinkRange(Struct):
    """Offsets that rows of one partition got."""

    partition_id: int
    partition_value: Any
    start_offset: int
    next_offset: int


class LinkReply(Struct):
    """What the rows of a link got."""

    ranges: list[LinkRange]
    repeated: bool = False
    """Whether this or a later epoch of the application was linked before: nothing was done now."""


class CompactedObject(Struct, forbid_unknown_fields=True):
    """An object of the broker's own kind that holds the rows of several others."""

    key: str
    size_bytes: Annotated[int, Meta(ge=1, le=(1 << 40))]
    crc32c: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
    etag: str | None = None


class CompactRequest(Struct, forbid_unknown_fields=True):
    """POST .../compactions: an object to count in the place of neighbours."""

    replaces: Annotated[list[str], Meta(min_length=1, max_length=1000)]
    object: CompactedObject


class CompactReply(Struct):
    """How many objects the topic has now."""

    objects: int


class SweepReply(Struct):
    """How many objects, and uploads that were never completed, were removed."""

    swept: int
