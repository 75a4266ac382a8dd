"""Refuses stream configurations and changes of them.

Options that Penstock does not support are refused by name, never ignored.
"""

from __future__ import annotations

from typing import Final

from penstock.model.errors import NameInvalid
from penstock.model.names import topic
from penstock.model.subjects import Filter, SubjectMapping
from penstock.model.times import SECOND_NS
from penstock.wire.jetstream.errors import (
    CONFIG_INVALID,
    MIRROR_NAME_INVALID,
    MIRROR_NOT_UPDATABLE,
    MIRROR_WITH_ATOMIC,
    MIRROR_WITH_COUNTERS,
    MIRROR_WITH_FAST,
    MIRROR_WITH_FIRST_SEQ,
    MIRROR_WITH_SCHEDULES,
    MIRROR_WITH_SOURCES,
    MIRROR_WITH_START_SEQ_AND_TIME,
    MIRROR_WITH_SUBJECTS,
    REPLICAS_NEGATIVE,
    REPLICAS_UNSUPPORTED,
)
from penstock.wire.jetstream.overlap import collide, first_collision, overlap
from penstock.wire.jetstream.source_rules import check_sources
from penstock.wire.jetstream.stream_config import (
    RePublish,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)

PERIOD_MIN_NS: Final = SECOND_NS // 10
"""The shortest `max_age` and `duplicate_window`."""
NAME_MAX: Final = 255
DESCRIPTION_MAX: Final = 4096
METADATA_BYTES_MAX: Final = 128 << 10
REPLICAS_MAX: Final = 5


def check_new(config: StreamConfig) -> None:
    """Refuse a normalised configuration that no stream may have; raises ApiError."""
    if config.sealed:
        raise CONFIG_INVALID.error("stream configuration for create can not be sealed")
    _check(config)


def check_update(old: StreamConfig, new: StreamConfig) -> None:
    """Refuse a change that a stream cannot make; both are normalised. Raises ApiError."""
    _check(new)
    if new.mirror is not None and new.mirror != old.mirror:
        raise MIRROR_NOT_UPDATABLE.error()
    changed = "stream configuration update can not "
    refused = {
        changed + "change storage type": old.storage != new.storage,
        changed + "change retention policy to/from workqueue": old.retention != new.retention
        and "workqueue" in (old.retention, new.retention),
        changed + "unseal a sealed stream": old.sealed and not new.sealed,
        changed + "cancel deny message deletes": old.deny_delete and not new.deny_delete,
        changed + "cancel deny purge": old.deny_purge and not new.deny_purge,
        "message TTL status can not be disabled": old.allow_msg_ttl and not new.allow_msg_ttl,
        "message schedules can not be disabled": old.allow_msg_schedules
        and not new.allow_msg_schedules,
        changed + "change message counter setting": old.allow_msg_counter != new.allow_msg_counter,
        changed + "change persist mode": old.persist_mode != new.persist_mode,
    }
    for sentence, applies in refused.items():
        if applies:
            raise CONFIG_INVALID.error(sentence)


def _check(config: StreamConfig) -> None:
    _check_name(config)
    _check_sizes(config)
    if config.num_replicas < 0:
        raise REPLICAS_NEGATIVE.error()
    for sentence, applies in (_refused(config) | _refused_of_counters(config)).items():
        if applies:
            raise CONFIG_INVALID.error(sentence)
    if config.mirror is not None:
        _check_mirror(config, config.mirror)
    check_sources(config)
    _check_unsupported(config)
    _check_subjects(config)
    if config.republish is not None:
        _check_republish(config, config.republish)
    if config.subject_transform is not None:
        _mapping(config.subject_transform, "subject transform")
    if config.num_replicas > 1:
        raise REPLICAS_UNSUPPORTED.error()


def _check_name(config: StreamConfig) -> None:
    if len(config.name) > NAME_MAX:
        raise CONFIG_INVALID.error(f"stream name is too long, maximum allowed is {NAME_MAX}")
    try:
        topic(config.name)
    except NameInvalid:
        raise CONFIG_INVALID.error(
            "stream name is required and can not contain '.', '*', '>', '\\', '/'"
        ) from None


def _check_sizes(config: StreamConfig) -> None:
    if len(config.description) > DESCRIPTION_MAX:
        raise CONFIG_INVALID.error(
            f"stream description is too long, maximum allowed is {DESCRIPTION_MAX}"
        )
    if sum(len(key) + len(value) for key, value in config.metadata.items()) > METADATA_BYTES_MAX:
        raise CONFIG_INVALID.error(
            f"stream metadata exceeds maximum size of {METADATA_BYTES_MAX} bytes"
        )


def _refused(config: StreamConfig) -> dict[str, bool]:
    age, window, marker = (
        config.max_age,
        config.duplicate_window,
        config.subject_delete_marker_ttl,
    )
    per_subject = config.discard_new_per_subject
    return {
        f"maximum replicas is {REPLICAS_MAX}": config.num_replicas > REPLICAS_MAX,
        "max age can not be negative": age < 0,
        "max age needs to be >= 100ms": 0 < age < PERIOD_MIN_NS,
        "duplicates window can not be negative": window < 0,
        "duplicates window can not be larger then max age": 0 < age < window,
        "duplicates window needs to be >= 100ms": 0 < window < PERIOD_MIN_NS,
        "discard new per subject requires discard new policy to be set": per_subject
        and config.discard != "new",
        "discard new per subject requires max msgs per subject > 0": per_subject
        and config.max_msgs_per_subject <= 0,
        "roll-ups require the purge permission": config.allow_rollup_hdrs and config.deny_purge,
        "subject delete marker TTL must not be negative": marker < 0,
        "subject delete marker TTL must be at least 1 second": 0 < marker < SECOND_NS,
        "subject delete marker cannot be set if message TTLs are disabled": marker > 0
        and not config.allow_msg_ttl,
        "subject delete marker cannot be set if roll-ups are disabled": marker > 0
        and not config.allow_rollup_hdrs,
        "message scheduling cannot use discard new": config.allow_msg_schedules
        and config.discard == "new",
        "message scheduling cannot be set if roll-ups are disabled": config.allow_msg_schedules
        and not config.allow_rollup_hdrs,
        "stream has no mirror but does have mirror direct": config.mirror_direct
        and config.mirror is None,
    }


def _refused_of_counters(config: StreamConfig) -> dict[str, bool]:
    counter = config.allow_msg_counter
    return {
        "counter stream cannot use discard new": counter and config.discard == "new",
        "counter stream cannot use message TTLs": counter and config.allow_msg_ttl,
        "counter stream cannot use message schedules": counter and config.allow_msg_schedules,
        "counter stream can only use limits retention": counter and config.retention != "limits",
        "async persist mode is not supported with atomic batch publish": config.allow_atomic
        and config.persist_mode == "async",
    }


def _check_unsupported(config: StreamConfig) -> None:
    features = {
        "placement tags": config.placement is not None and bool(config.placement.tags),
    }
    for feature, requested in features.items():
        if requested:
            raise CONFIG_INVALID.error(f"{feature} is not supported by this server")


def _check_mirror(config: StreamConfig, mirror: StreamSource) -> None:
    if config.sources:
        raise MIRROR_WITH_SOURCES.error()
    if config.subjects:
        raise MIRROR_WITH_SUBJECTS.error()
    if config.first_seq:
        raise MIRROR_WITH_FIRST_SEQ.error()
    features = {
        MIRROR_WITH_COUNTERS: config.allow_msg_counter,
        MIRROR_WITH_ATOMIC: config.allow_atomic,
        MIRROR_WITH_FAST: config.allow_batched,
        MIRROR_WITH_SCHEDULES: config.allow_msg_schedules,
    }
    for kind, requested in features.items():
        if requested:
            raise kind.error()
    if mirror.opt_start_seq and mirror.opt_start_time:
        raise MIRROR_WITH_START_SEQ_AND_TIME.error()
    if mirror.external is not None or mirror.subject_transforms or mirror.consumer is not None:
        raise CONFIG_INVALID.error("mirrors of other accounts or with transforms are not supported")
    try:
        topic(mirror.name)
    except NameInvalid:
        raise MIRROR_NAME_INVALID.error() from None


def _mapping(mapped: RePublish | SubjectTransform, option: str) -> SubjectMapping:
    try:
        return SubjectMapping.parse(mapped.src.encode(), mapped.dest.encode())
    except NameInvalid as error:
        raise CONFIG_INVALID.error(f"stream configuration for {option}: {error}") from None


def _check_republish(config: StreamConfig, republish: RePublish) -> None:
    mapping = _mapping(republish, "republish")
    if overlap([mapping.reach.decode()], config.subjects):
        raise CONFIG_INVALID.error("stream configuration for republish destination forms a cycle")


def _check_subjects(config: StreamConfig) -> None:
    for subject in config.subjects:
        try:
            Filter.parse(subject.encode())
        except (NameInvalid, UnicodeEncodeError):
            raise CONFIG_INVALID.error("invalid subject") from None
    collision = first_collision(config.subjects)
    if collision is not None:
        subject, other = collision
        raise CONFIG_INVALID.error(f'subject "{subject}" overlaps with "{other}"')
    if config.no_ack:
        return
    for subject in config.subjects:
        if subject == ">":
            raise CONFIG_INVALID.error("capturing all subjects requires no-ack to be true")
        if collide(subject, "$JS.API.>"):
            raise CONFIG_INVALID.error(
                "subjects that overlap with jetstream api require no-ack to be true"
            )
        if collide(subject, "$SYS.>"):
            raise CONFIG_INVALID.error(
                "subjects that overlap with system api require no-ack to be true"
            )
