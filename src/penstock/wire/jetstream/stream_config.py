"""The configuration of a stream: as requested, as stored and as shown in replies.

The fields are in the order in which replies show them. `parse_stream_config` parses a request,
`normalised` fills in defaults, and `stream_rules` refuses configurations. -1 means no limit, also
in fields that are never negative on the wire.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from penstock.model.errors import FormatError
from penstock.model.times import SECOND_NS
from penstock.wire.jetstream import levels
from penstock.wire.jetstream.errors import (
    PEDANTIC,
    STREAM_MISMATCH,
)
from penstock.wire.jetstream.strict import CHOICE, Duration, Int, Int64, Time, Uint64, read

DUPLICATE_WINDOW_NS: Final = 120 * SECOND_NS

_choice = Meta(title=CHOICE)
Retention = Annotated[Literal["limits", "interest", "workqueue"], _choice]
Discard = Annotated[Literal["old", "new"], _choice]
Storage = Annotated[Literal["file", "memory"], _choice]
PersistMode = Annotated[Literal["", "default", "async"], _choice]
Compression = Annotated[Literal["none", "s2"], Meta(title="unknown compression algorithm{:.0}")]


class Placement(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The placement of a stream in a cluster; a single broker ignores it."""

    cluster: str = ""
    tags: tuple[str, ...] = ()
    preferred: str = ""


class SubjectTransform(Struct, frozen=True, forbid_unknown_fields=True):
    """Rewrites subjects before messages are stored."""

    src: str = ""
    dest: str = ""


class StreamSource(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A stream that a mirror or a source copies from."""

    name: str = ""
    opt_start_seq: Uint64 = 0
    opt_start_time: Time = ""
    filter_subject: str = ""
    subject_transforms: tuple[SubjectTransform, ...] = ()
    external: dict[str, Any] | None = None
    consumer: dict[str, Any] | None = None


class RePublish(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Publishes stored messages again, under other subjects."""

    src: str = ""
    dest: str = ""
    headers_only: bool = False


class ConsumerLimits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Defaults and limits of the stream's consumers."""

    inactive_threshold: Duration = 0
    max_ack_pending: Int = 0


class StreamConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A stream's configuration, as it is stored."""

    name: str = ""
    description: str = ""
    subjects: tuple[str, ...] = ()
    retention: Retention = "limits"
    max_consumers: Int = -1
    max_msgs: Int64 = -1
    max_bytes: Int64 = -1
    max_age: Duration = 0
    max_msgs_per_subject: Int64 = -1
    max_msg_size: Int64 = -1
    discard: Discard = "old"
    storage: Storage = "file"
    num_replicas: Int = 1
    no_ack: bool = False
    duplicate_window: Duration = 0
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: tuple[StreamSource, ...] = ()
    compression: Compression = "none"
    first_seq: Uint64 = 0
    subject_transform: SubjectTransform | None = None
    republish: RePublish | None = None
    allow_direct: bool = False
    mirror_direct: bool = False
    discard_new_per_subject: bool = False
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    consumer_limits: ConsumerLimits = ConsumerLimits()
    allow_msg_ttl: bool = False
    subject_delete_marker_ttl: Duration = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode = ""
    allow_batched: bool = False
    metadata: dict[str, str] = {}


class _Request(StreamConfig, frozen=True, forbid_unknown_fields=True):
    """The body of a request: the configuration, and whether defaults are refused."""

    pedantic: bool = False


_OMITTED_WHEN_EMPTY: Final = frozenset({
    "description", "subjects", "no_ack", "duplicate_window", "placement", "mirror", "sources",
    "first_seq", "subject_transform", "republish", "discard_new_per_subject",
    "subject_delete_marker_ttl", "allow_msg_counter", "allow_atomic", "allow_msg_schedules",
    "persist_mode", "allow_batched", "metadata",
})  # fmt: skip
_LIMITS: Final = (
    "max_consumers",
    "max_msgs",
    "max_bytes",
    "max_msgs_per_subject",
    "max_msg_size",
)
_CONFIG: Final = msgspec.json.Decoder(StreamConfig)


def parse_stream_config(body: bytes, name_in_subject: str) -> tuple[StreamConfig, bool]:
    """The configuration in a request, and whether the request is pedantic; raises ApiError.

    `allow_direct` gets its default here, because only the body shows whether it is missing.
    """
    request = read(body, _Request, "StreamConfigRequest")
    if request.name != name_in_subject:
        raise STREAM_MISMATCH.error()
    fields = msgspec.structs.asdict(request)
    pedantic = fields.pop("pedantic")
    if not _has_field(body, "allow_direct"):
        fields["allow_direct"] = request.max_msgs_per_subject > 0
    return StreamConfig(**fields), pedantic


def _has_field(body: bytes, field: str) -> bool:
    return msgspec.json.decode(body).get(field) is not None


def encode(config: StreamConfig) -> bytes:
    """The JSON text that is stored."""
    return msgspec.json.encode(_document(config))


def decode(text: bytes) -> StreamConfig:
    """The configuration that `encode` wrote; raises FormatError."""
    try:
        return _CONFIG.decode(text)
    except msgspec.DecodeError as error:
        raise FormatError(f"not a stored configuration: {error}") from error


def shown(config: StreamConfig) -> dict[str, Any]:
    """The configuration as a reply about one stream shows it."""
    return _document(config) | {"metadata": levels.shown(config.metadata)}


def listed(config: StreamConfig) -> dict[str, Any]:
    """The configuration as a list of streams shows it."""
    return _document(config)


def _document(config: StreamConfig) -> dict[str, Any]:
    return {
        name: value
        for name, value in msgspec.structs.asdict(config).items()
        if value or name not in _OMITTED_WHEN_EMPTY
    }


def normalised(config: StreamConfig, *, pedantic: bool = False) -> StreamConfig:
    """The configuration with defaults; a pedantic request must set limits itself."""
    if pedantic:
        _check_pedantic(config)
    else:
        config = _with_required_options(config)
    copied = config.mirror is not None or bool(config.sources)
    return msgspec.structs.replace(
        config,
        subjects=config.subjects or (() if copied else (config.name,)),
        **{name: _limit(getattr(config, name)) for name in _LIMITS},
        num_replicas=config.num_replicas or 1,
        duplicate_window=_duplicate_window(config),
        placement=config.placement if config.placement != Placement() else None,
        persist_mode="" if config.persist_mode == "default" else config.persist_mode,
        metadata=levels.stored(config.metadata, _required_level(config)),
    )


def with_seal(config: StreamConfig) -> StreamConfig:
    """The configuration with everything that `sealed` implies.

    It is applied after an update was checked, which must not refuse implied changes.
    """
    if not config.sealed:
        return config
    return msgspec.structs.replace(
        config,
        discard="new",
        max_age=0,
        deny_delete=True,
        deny_purge=True,
        allow_rollup_hdrs=False,
    )


def _with_required_options(config: StreamConfig) -> StreamConfig:
    """Allow roll-ups for markers and schedules, which replace messages, and TTLs for markers."""
    if config.subject_delete_marker_ttl > 0:
        config = msgspec.structs.replace(
            config, deny_purge=False, allow_rollup_hdrs=True, allow_msg_ttl=True
        )
    if config.allow_msg_schedules and not config.allow_rollup_hdrs:
        config = msgspec.structs.replace(config, deny_purge=False, allow_rollup_hdrs=True)
    return config


def _check_pedantic(config: StreamConfig) -> None:
    for name in _LIMITS:
        if getattr(config, name) < -1:
            raise PEDANTIC.error(f"{name} must be set to -1")
    if not config.duplicate_window and 0 < config.max_age < DUPLICATE_WINDOW_NS:
        raise PEDANTIC.error("duplicate window cannot be bigger than max age")


def _limit(most: int) -> int:
    return most if most > 0 else -1


def _duplicate_window(config: StreamConfig) -> int:
    if config.duplicate_window or config.mirror is not None or config.sources:
        return config.duplicate_window
    return min(DUPLICATE_WINDOW_NS, config.max_age if config.max_age > 0 else DUPLICATE_WINDOW_NS)


def _required_level(config: StreamConfig) -> int:
    if config.allow_batched:
        return 4
    if (
        config.allow_msg_counter
        or config.allow_atomic
        or config.allow_msg_schedules
        or config.persist_mode == "async"
    ):
        return 2
    return 1 if config.allow_msg_ttl or config.subject_delete_marker_ttl else 0
