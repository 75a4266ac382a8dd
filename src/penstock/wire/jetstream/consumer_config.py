"""The configuration of a consumer: as requested, as stored and as shown in replies.

The fields are in the order in which replies show them. `parse_create_request` parses a request,
`addressed` compares it with its subject, and `normalised` fills in defaults; `consumer_rules`
refuses configurations.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from penstock.model.errors import FormatError
from penstock.model.times import SECOND_NS
from penstock.wire.jetstream import levels
from penstock.wire.jetstream.errors import (
    DURABLE_NAME_MISMATCH,
    DURABLE_NAME_MISSING,
    EPHEMERAL_WITH_DURABLE_NAME,
    FILTER_MISMATCH,
    FILTERS_IN_SUBJECT,
    PEDANTIC,
    STREAM_MISMATCH,
)
from penstock.wire.jetstream.stream_config import ConsumerLimits
from penstock.wire.jetstream.strict import CHOICE, Duration, Int, Int64, Time, Uint64, read
from penstock.wire.jetstream.times import ZERO_TIME

ACK_WAIT_NS: Final = 30 * SECOND_NS
MAX_WAITING: Final = 512
MAX_ACK_PENDING: Final = 1000
INACTIVE_THRESHOLD_NS: Final = 5 * SECOND_NS
PINNED_TTL_NS: Final = 120 * SECOND_NS

_choice = Meta(title=CHOICE)
DeliverPolicy = Annotated[
    Literal[
        "all",
        "last",
        "new",
        "by_start_sequence",
        "by_start_time",
        "last_per_subject",
        "undefined",
    ],
    _choice,
]
AckPolicy = Annotated[Literal["none", "all", "explicit", "flow_control"], _choice]
ReplayPolicy = Annotated[Literal["instant", "original"], _choice]
PriorityPolicy = Annotated[
    Literal["", "none", "overflow", "pinned_client", "prioritized"],
    Meta(title="unknown priority policy: {}"),
]
Action = Annotated[Literal["", "create", "update"], Meta(title="unknown consumer action: {}")]


class ConsumerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A consumer's configuration, as it is stored."""

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: DeliverPolicy = "all"
    opt_start_seq: Uint64 = 0
    opt_start_time: Time = ""
    ack_policy: AckPolicy = "none"
    ack_wait: Duration = 0
    max_deliver: Int = 0
    backoff: tuple[Duration, ...] = ()
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    replay_policy: ReplayPolicy = "instant"
    rate_limit_bps: Uint64 = 0
    sample_freq: str = ""
    max_waiting: Int = 0
    max_ack_pending: Int = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: Int = 0
    max_expires: Duration = 0
    max_bytes: Int64 = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: Duration = 0
    inactive_threshold: Duration = 0
    num_replicas: Int = 0
    mem_storage: bool = False
    direct: bool = False
    metadata: dict[str, str] = {}
    pause_until: Time = ""
    priority_groups: tuple[str, ...] = ()
    priority_policy: PriorityPolicy = ""
    priority_timeout: Duration = 0

    @property
    def push(self) -> bool:
        """Whether messages are pushed to a deliver subject; otherwise clients pull them."""
        return bool(self.deliver_subject)

    @property
    def filters(self) -> tuple[str, ...]:
        """The subject filters; without any, every message matches."""
        return self.filter_subjects or ((self.filter_subject,) if self.filter_subject else ())


class CreateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request to create or update a consumer."""

    stream_name: str = ""
    config: ConsumerConfig = ConsumerConfig()
    action: Action = ""
    pedantic: bool = False


_ALWAYS_SHOWN: Final = frozenset({"deliver_policy", "ack_policy", "replay_policy", "num_replicas"})
_CONFIG: Final = msgspec.json.Decoder(ConsumerConfig)


def parse_create_request(body: bytes) -> CreateRequest:
    """Parse a request body; raises ApiError."""
    return read(body, CreateRequest, "CreateConsumerRequest")


def addressed(
    request: CreateRequest, stream: str, name: str = "", filter_subject: str = ""
) -> ConsumerConfig:
    """The configuration with the name from the request's subject; raises ApiError.

    Without a name in the subject, only an ephemeral consumer can be created.
    """
    config = request.config
    if request.stream_name != stream:
        raise STREAM_MISMATCH.error()
    if not name:
        if config.durable_name:
            raise EPHEMERAL_WITH_DURABLE_NAME.error()
        return config
    if config.durable_name and config.durable_name != name:
        raise DURABLE_NAME_MISMATCH.error()
    if filter_subject:
        if config.filter_subjects:
            raise FILTERS_IN_SUBJECT.error()
        if config.filter_subject != filter_subject:
            raise FILTER_MISMATCH.error()
    return msgspec.structs.replace(config, name=name)


def addressed_durable(request: CreateRequest, stream: str, name: str) -> ConsumerConfig:
    """The configuration of a request to the older DURABLE.CREATE subject; raises ApiError."""
    if request.stream_name == stream and not request.config.durable_name:
        raise DURABLE_NAME_MISSING.error()
    return addressed(request, stream, name)


def encode(config: ConsumerConfig) -> bytes:
    """The JSON text that is stored."""
    return msgspec.json.encode(_document(config))


def decode(text: bytes) -> ConsumerConfig:
    """The configuration that `encode` wrote; raises FormatError."""
    try:
        return _CONFIG.decode(text)
    except msgspec.DecodeError as error:
        raise FormatError(f"not a stored configuration: {error}") from error


def shown(config: ConsumerConfig) -> dict[str, Any]:
    """The configuration as a reply about one consumer shows it."""
    return _document(config, levels.shown(config.metadata))


def listed(config: ConsumerConfig) -> dict[str, Any]:
    """The configuration as a list of consumers shows it."""
    return _document(config)


def _document(config: ConsumerConfig, metadata: dict[str, str] | None = None) -> dict[str, Any]:
    fields = msgspec.structs.asdict(config)
    fields["metadata"] = config.metadata if metadata is None else metadata
    return {name: value for name, value in fields.items() if value or name in _ALWAYS_SHOWN}


def normalised(
    config: ConsumerConfig, limits: ConsumerLimits, *, pedantic: bool = False
) -> ConsumerConfig:
    """The configuration with defaults; a pedantic request must set limits itself.

    An ephemeral consumer without a name receives one on creation.
    """
    if pedantic:
        _check_pedantic(config, limits)
    durable = config.durable_name
    policy = "all" if config.deliver_policy == "undefined" else config.deliver_policy
    priority = "" if config.priority_policy == "none" else config.priority_policy
    return msgspec.structs.replace(
        config,
        name=durable or config.name,
        deliver_policy=policy,
        ack_wait=_ack_wait(config),
        max_deliver=config.max_deliver if config.max_deliver > 0 else -1,
        max_waiting=_max_waiting(config),
        max_ack_pending=_max_ack_pending(config, limits),
        max_batch=max(config.max_batch, 0),
        max_expires=max(config.max_expires, 0),
        max_bytes=max(config.max_bytes, 0),
        inactive_threshold=_inactive_threshold(config, limits),
        pause_until="" if config.pause_until == ZERO_TIME else config.pause_until,
        priority_policy=priority,
        priority_timeout=config.priority_timeout
        or (PINNED_TTL_NS if priority == "pinned_client" else 0),
        metadata=levels.stored(config.metadata, _required_level(config)),
    )


def _check_pedantic(config: ConsumerConfig, limits: ConsumerLimits) -> None:
    for name in ("max_ack_pending", "inactive_threshold"):
        if getattr(limits, name) and not getattr(config, name):
            raise PEDANTIC.error(f"{name} must be set if it's configured in stream limits")
    if config.backoff and config.ack_wait != config.backoff[0]:
        raise PEDANTIC.error("first backoff value has to equal batch AckWait")


def _ack_wait(config: ConsumerConfig) -> int:
    if config.backoff:
        return config.backoff[0]
    return config.ack_wait or (ACK_WAIT_NS if config.ack_policy in ("explicit", "all") else 0)


def _max_waiting(config: ConsumerConfig) -> int:
    if config.push:
        return config.max_waiting
    return config.max_waiting if config.max_waiting > 0 else MAX_WAITING


def _max_ack_pending(config: ConsumerConfig, limits: ConsumerLimits) -> int:
    if config.max_ack_pending:
        return max(config.max_ack_pending, -1)
    if limits.max_ack_pending > 0:
        return limits.max_ack_pending
    return 0 if config.ack_policy == "none" else MAX_ACK_PENDING


def _inactive_threshold(config: ConsumerConfig, limits: ConsumerLimits) -> int:
    if config.inactive_threshold > 0:
        return config.inactive_threshold
    if limits.inactive_threshold > 0:
        return limits.inactive_threshold
    return 0 if config.durable_name else INACTIVE_THRESHOLD_NS


def _required_level(config: ConsumerConfig) -> int:
    pauses = config.pause_until not in ("", ZERO_TIME)
    return 1 if pauses or config.priority_policy not in ("", "none") else 0
