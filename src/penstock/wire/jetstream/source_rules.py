"""Refuses sources of a stream: each alone, several together, and in view of their origins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations

from penstock.model.errors import NameInvalid
from penstock.model.names import topic
from penstock.model.subjects import SubjectMapping, valid_filter
from penstock.wire.jetstream.errors import (
    CONFIG_INVALID,
    SOURCE_DUPLICATE,
    SOURCE_FILTER_INVALID,
    SOURCE_FILTERS_OVERLAP,
    SOURCE_MESSAGE_SIZE,
    SOURCE_NAME_INVALID,
    SOURCE_TRANSFORM_INVALID,
    SOURCE_WITH_BOTH_FILTERS,
    SOURCE_WITH_SCHEDULES,
    STREAM_CREATE,
)
from penstock.wire.jetstream.overlap import overlap, subset
from penstock.wire.jetstream.sourced import source_key
from penstock.wire.jetstream.stream_config import StreamConfig, StreamSource, SubjectTransform

ConfigOf = Callable[[str], StreamConfig | None]
"""Returns the configuration of the stream with a name, None if there is none."""


def check_sources(config: StreamConfig) -> None:
    """Refuse sources that no stream may have; raises ApiError."""
    if config.sources and config.allow_msg_schedules:
        raise SOURCE_WITH_SCHEDULES.error()
    if config.sources and config.allow_msg_counter:
        raise CONFIG_INVALID.error("sources of a counter stream are not supported by this server")
    keys: set[str] = set()
    for source in config.sources:
        _check_name(source)
        if source_key(source) in keys:
            raise SOURCE_DUPLICATE.error()
        keys.add(source_key(source))
        _check_filters(source)
        if source.external is not None:
            raise CONFIG_INVALID.error("sources of other accounts are not supported by this server")
        if source.consumer is not None:
            raise CONFIG_INVALID.error(
                "sources with a consumer of their own are not supported by this server"
            )


def check_origins(config: StreamConfig, config_of: ConfigOf) -> None:
    """Refuse sources that conflict with the streams they name; raises ApiError.

    A stream that does not exist yet is not checked; its messages are copied once it exists.
    """
    for source in config.sources:
        origin = config_of(source.name)
        if origin is not None and 0 < config.max_msg_size < origin.max_msg_size:
            raise SOURCE_MESSAGE_SIZE.error()
    _check_cycles(config, config_of)


def _check_name(source: StreamSource) -> None:
    try:
        topic(source.name)
    except NameInvalid:
        raise SOURCE_NAME_INVALID.error() from None


def _check_filters(source: StreamSource) -> None:
    filter_subject, transforms = source.filter_subject, source.subject_transforms
    if filter_subject and transforms:
        raise SOURCE_WITH_BOTH_FILTERS.error()
    for transform in transforms:
        _check_transform(transform)
    for transform, other in permutations(transforms, 2):
        if transform.src and other.src and subset(transform.src, other.src):
            raise SOURCE_FILTERS_OVERLAP.error()
    if filter_subject and not _is_filter(filter_subject):
        raise STREAM_CREATE.error(
            f"subject filter '{filter_subject}' for the source: invalid subject"
        )


def _check_transform(transform: SubjectTransform) -> None:
    if transform.src and not _is_filter(transform.src):
        raise SOURCE_FILTER_INVALID.error(f"invalid subject {transform.src}")
    if not transform.dest:
        return
    parts = transform.dest.split(".")
    loses_tail = (transform.src or ">").split(".")[-1] == ">" != parts[-1]
    if "*" in parts or loses_tail:
        raise SOURCE_TRANSFORM_INVALID.error("invalid subject")
    try:
        mapping = SubjectMapping.parse(transform.src.encode(), transform.dest.encode())
    except (NameInvalid, UnicodeEncodeError) as error:
        raise SOURCE_TRANSFORM_INVALID.error(str(error)) from None
    if not valid_filter(mapping.reach):
        raise SOURCE_TRANSFORM_INVALID.error("invalid mapping destination: invalid transform")


def _is_filter(text: str) -> bool:
    try:
        return valid_filter(text.encode())
    except UnicodeEncodeError:
        return False


def _check_cycles(config: StreamConfig, config_of: ConfigOf) -> None:
    """Raise ApiError if messages of the stream would return to it through other streams."""
    visited: set[str] = set()
    waiting = [config]
    while waiting:
        current = waiting.pop(0)
        visited.add(current.name)
        for name, closes in _origins(current):
            if name in visited:
                if closes:
                    raise CONFIG_INVALID.error("detected cycle")
            elif (origin := config_of(name)) is not None:
                waiting.append(origin)


def _origins(config: StreamConfig) -> Iterable[tuple[str, bool]]:
    """The streams that a stream copies from, and whether a path back to each would be a cycle."""
    for source in config.sources:
        filter_subject = source.filter_subject
        yield source.name, not filter_subject or overlap([filter_subject], config.subjects)
    if config.mirror is not None:
        yield config.mirror.name, True
