"""Refuses consumer configurations and changes of them.

Options that Penstock does not support are refused by name, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from penstock.model.errors import NameInvalid
from penstock.model.subjects import Filter, valid_subject
from penstock.model.times import SECOND_NS
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.consumer_config import ConsumerConfig
from penstock.wire.jetstream.errors import CONFIG_INVALID, CONSUMER_CREATE, DELIVER_POLICY_INVALID
from penstock.wire.jetstream.overlap import collide, first_collision, overlap
from penstock.wire.jetstream.stream_config import ConsumerLimits, StreamConfig
from penstock.wire.jetstream.times import duration_text

NAME_MAX: Final = 255
DESCRIPTION_MAX: Final = 4096
METADATA_BYTES_MAX: Final = 128 << 10
HEARTBEAT_MIN_NS: Final = SECOND_NS // 10
EXPIRES_MIN_NS: Final = SECOND_NS // 1000
SAMPLING_DIGITS_MAX: Final = 18
"""Percentages with more digits are out of range."""

_NAME_FORBIDDEN: Final = re.compile(r"[.*>\s\x00-\x1f\x7f-\x9f]")
_GROUP: Final = re.compile(r"[A-Za-z0-9\-_/=)+]{1,16}")
_POLICIES: Final = {
    "all": "deliver all",
    "last": "deliver last",
    "new": "deliver new",
    "last_per_subject": "deliver last per subject",
    "by_start_sequence": "deliver by start sequence",
    "by_start_time": "deliver by start time",
}


def check(config: ConsumerConfig, stream: StreamConfig) -> None:
    """Refuse a normalised configuration that no consumer of `stream` may have; raises ApiError."""
    _check_name(config)
    _check_sizes(config, stream.consumer_limits)
    if config.push:
        _check_push(config, stream)
    else:
        _check_pull(config, stream)
    _check_acks(config)
    _check_deliver_policy(config)
    _check_filters(config)
    _check_sampling(config.sample_freq)
    if stream.retention == "workqueue":
        _check_workqueue(config)
    _check_priority(config)


def check_workqueue_place(config: ConsumerConfig, others: Iterable[ConsumerConfig]) -> None:
    """Refuse a consumer of a work queue that shares subjects with another; raises ApiError."""
    for other in others:
        if not config.filters:
            raise errors.WORKQUEUE_MULTIPLE_UNFILTERED.error()
        if overlap(config.filters, other.filters or (">",)):
            raise errors.WORKQUEUE_NOT_UNIQUE.error()


def check_update(old: ConsumerConfig, new: ConsumerConfig) -> None:
    """Refuse a change that a consumer cannot make; both are normalised. Raises ApiError."""
    refused = {
        "deliver policy": old.deliver_policy != new.deliver_policy,
        "start sequence": old.opt_start_seq != new.opt_start_seq,
        "start time": old.opt_start_time != new.opt_start_time,
        "ack policy": old.ack_policy != new.ack_policy,
        "replay policy": old.replay_policy != new.replay_policy,
        "heart beats": old.idle_heartbeat != new.idle_heartbeat,
        "flow control": old.flow_control != new.flow_control,
        "storage type": old.mem_storage != new.mem_storage,
    }
    for what, changed in refused.items():
        if changed:
            raise CONSUMER_CREATE.error(f"{what} can not be updated")
    if new.push and not old.push:
        raise CONSUMER_CREATE.error("can not update pull consumer to push based")
    if old.push and not new.push:
        raise CONSUMER_CREATE.error("can not update push consumer to pull based")
    if old.max_waiting != new.max_waiting:
        raise CONSUMER_CREATE.error("max waiting can not be updated")


def _check_name(config: ConsumerConfig) -> None:
    if len(config.name) > NAME_MAX:
        raise errors.CONSUMER_NAME_TOO_LONG.error(NAME_MAX)
    if "/" in config.name or "\\" in config.name:
        raise errors.CONSUMER_NAME_WITH_SEPARATORS.error()
    if _NAME_FORBIDDEN.search(config.name):
        raise CONFIG_INVALID.error("consumer name can not contain '.', '*', '>', '\\', '/'")


def _check_sizes(config: ConsumerConfig, limits: ConsumerLimits) -> None:
    if len(config.description) > DESCRIPTION_MAX:
        raise errors.CONSUMER_DESCRIPTION_TOO_LONG.error(DESCRIPTION_MAX)
    if sum(len(key) + len(value) for key, value in config.metadata.items()) > METADATA_BYTES_MAX:
        raise errors.CONSUMER_METADATA_TOO_LARGE.error(f"{METADATA_BYTES_MAX >> 10}KB")
    if config.num_replicas < 0:
        raise errors.REPLICAS_NEGATIVE.error()
    if config.num_replicas > 1:
        raise errors.REPLICAS_UNSUPPORTED.error()
    if 0 < limits.max_ack_pending < config.max_ack_pending:
        raise errors.MAX_ACK_PENDING_EXCEEDED.error(limits.max_ack_pending)
    if 0 < limits.inactive_threshold < config.inactive_threshold:
        longest = duration_text(limits.inactive_threshold)
        raise errors.INACTIVE_THRESHOLD_EXCEEDED.error(longest)


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    subject = config.deliver_subject.encode()
    if not valid_subject(subject):
        wild = {b"*", b">"}.intersection(subject.split(b"."))
        raise (errors.DELIVER_TO_WILDCARDS if wild else errors.DELIVER_SUBJECT_INVALID).error()
    if any(collide(config.deliver_subject, other) for other in stream.subjects):
        raise errors.DELIVER_CYCLE.error()
    refused = {
        errors.PUSH_WITH_MAX_WAITING: config.max_waiting > 0,
        errors.HEARTBEAT_TOO_SMALL: 0 < config.idle_heartbeat < HEARTBEAT_MIN_NS,
        errors.FLOW_CONTROL_NEEDS_HEARTBEATS: config.flow_control and not config.idle_heartbeat,
        errors.PUSH_WITH_PRIORITY_GROUP: bool(config.priority_policy or config.priority_groups),
    }
    _refuse(refused)
    if config.direct:
        raise CONSUMER_CREATE.error("direct consumers are not supported by this server")


def _check_pull(config: ConsumerConfig, stream: StreamConfig) -> None:
    refused = {
        errors.PULL_WITH_RATE_LIMIT: config.rate_limit_bps > 0,
        errors.HEARTBEAT_REQUIRES_PUSH: config.idle_heartbeat != 0,
        errors.FLOW_CONTROL_REQUIRES_PUSH: config.flow_control,
        errors.DIRECT_REQUIRES_PUSH: config.direct,
        errors.MAX_EXPIRES_TOO_SMALL: 0 < config.max_expires < EXPIRES_MIN_NS,
        errors.WORKQUEUE_PULL_REQUIRES_ACK: stream.retention == "workqueue"
        and config.ack_policy == "none",
    }
    _refuse(refused)


def _refuse(refused: dict[errors.ErrorKind, bool]) -> None:
    for kind, applies in refused.items():
        if applies:
            raise kind.error()


def _check_acks(config: ConsumerConfig) -> None:
    if config.ack_policy == "flow_control":
        raise CONSUMER_CREATE.error("ack policy flow_control is not supported by this server")
    if config.replay_policy == "original":
        raise CONSUMER_CREATE.error("replay policy original is not supported by this server")
    if any(wait < 0 for wait in config.backoff):
        raise errors.BACKOFF_NEGATIVE.error()
    if config.ack_wait < 0:
        raise errors.ACK_WAIT_NEGATIVE.error()
    if 0 < config.max_deliver < len(config.backoff):
        raise errors.MAX_DELIVER_BELOW_BACKOFF.error()


def _check_deliver_policy(config: ConsumerConfig) -> None:
    policy = config.deliver_policy
    start = f"consumer delivery policy is {_POLICIES[policy]}, but optional "
    sequence, time = bool(config.opt_start_seq), bool(config.opt_start_time)
    refused = {
        "start sequence is not set": policy == "by_start_sequence" and not sequence,
        "start time is not set": policy == "by_start_time" and not time,
        "start sequence is also set": policy != "by_start_sequence" and sequence,
        "start time is also set": policy != "by_start_time" and time,
        "filter subject is not set": policy == "last_per_subject" and not config.filters,
    }
    for sentence, applies in refused.items():
        if applies:
            raise DELIVER_POLICY_INVALID.error(start + sentence)


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise errors.BOTH_FILTERS.error()
    if "" in config.filter_subjects:
        raise errors.FILTER_EMPTY.error()
    for subject in config.filters:
        try:
            Filter.parse(subject.encode())
        except (NameInvalid, UnicodeEncodeError):
            raise CONFIG_INVALID.error("invalid subject") from None
    if first_collision(config.filters) is not None:
        raise errors.FILTERS_OVERLAP.error()


def _check_sampling(frequency: str) -> None:
    percent = frequency.removesuffix("%")
    parsed = f'strconv.Atoi: parsing "{percent[:SAMPLING_DIGITS_MAX]}"'
    if percent and not (percent.isascii() and percent.isdecimal()):
        raise errors.SAMPLING_INVALID.error(f"{parsed}: invalid syntax")
    if len(percent) > SAMPLING_DIGITS_MAX:
        raise errors.SAMPLING_INVALID.error(f"{parsed}: value out of range")


def _check_workqueue(config: ConsumerConfig) -> None:
    if config.ack_policy != "explicit":
        raise errors.WORKQUEUE_REQUIRES_EXPLICIT_ACK.error()
    if config.deliver_policy != "all":
        raise errors.WORKQUEUE_NOT_DELIVER_ALL.error()


def _check_priority(config: ConsumerConfig) -> None:
    if not config.priority_policy:
        refused = {
            errors.PRIORITY_GROUP_WITHOUT_POLICY: bool(config.priority_groups),
            errors.PINNED_TTL_WITHOUT_POLICY: config.priority_timeout != 0,
        }
        _refuse(refused)
    elif not config.priority_groups:
        raise errors.PRIORITY_POLICY_WITHOUT_GROUP.error()
    for group in config.priority_groups:
        if not group:
            raise errors.PRIORITY_GROUP_EMPTY.error()
        if not _GROUP.fullmatch(group):
            raise errors.PRIORITY_GROUP_INVALID.error()
