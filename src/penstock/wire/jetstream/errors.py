"""Every error of the JetStream API, as in nats-server: HTTP-like code, error code and text.

`raise STREAM_NOT_FOUND.error()`; a text with `{}` takes arguments: `BAD_JSON.error("no end")`.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from penstock.model.errors import PenstockError


class ApiError(PenstockError):
    """An error reply of the API."""

    code = "jetstream_api_error"

    def __init__(self, status: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} ({err_code})")
        self.status, self.err_code, self.description = status, err_code, description

    def document(self) -> dict[str, Any]:
        return {"code": self.status, "err_code": self.err_code, "description": self.description}


class ErrorKind(Struct, frozen=True):
    """A row of the table of errors."""

    code: int
    err_code: int
    sentence: str

    def error(self, *facts: object) -> ApiError:
        return ApiError(self.code, self.err_code, self.sentence.format(*facts))


BAD_REQUEST: Final = ErrorKind(400, 10003, "bad request")
SYSTEM_UNAVAILABLE: Final = ErrorKind(503, 10008, "JetStream system temporarily unavailable")
CONSUMER_CREATE: Final = ErrorKind(500, 10012, "{}")
CONSUMER_NAME_EXISTS: Final = ErrorKind(400, 10013, "consumer name already in use")
CONSUMER_NOT_FOUND: Final = ErrorKind(404, 10014, "consumer not found")
DURABLE_NAME_MISMATCH: Final = ErrorKind(
    400, 10017, "consumer name in subject does not match durable name in request"
)
DURABLE_NAME_MISSING: Final = ErrorKind(
    400, 10018, "consumer expected to be durable but a durable name was not set"
)
EPHEMERAL_WITH_DURABLE_NAME: Final = ErrorKind(
    400, 10020, "consumer expected to be ephemeral but a durable name was set in request"
)
INSUFFICIENT_RESOURCES: Final = ErrorKind(503, 10023, "insufficient resources")
BAD_JSON: Final = ErrorKind(400, 10025, "invalid JSON: {}")
CONSUMERS_MAX: Final = ErrorKind(400, 10026, "maximum consumers limit reached")
MIRROR_WITH_SOURCES: Final = ErrorKind(
    400, 10031, "stream mirrors can not also contain other sources"
)
MIRROR_WITH_START_SEQ_AND_TIME: Final = ErrorKind(
    400, 10032, "stream mirrors can not have both start seq and start time configured"
)
MIRROR_WITH_SUBJECTS: Final = ErrorKind(400, 10034, "stream mirrors can not contain subjects")
MESSAGE_NOT_FOUND: Final = ErrorKind(404, 10037, "no message found")
NOT_EMPTY_REQUEST: Final = ErrorKind(400, 10038, "expected an empty request payload")
SEQUENCE_NOT_FOUND: Final = ErrorKind(400, 10043, "sequence {} not found")
SOURCE_MESSAGE_SIZE: Final = ErrorKind(
    400, 10046, "stream source must have max message size >= target"
)
STREAM_CREATE: Final = ErrorKind(500, 10049, "{}")
STREAM_DELETE: Final = ErrorKind(500, 10050, "{}")
STREAM_FAILED: Final = ErrorKind(500, 10051, "{}")
CONFIG_INVALID: Final = ErrorKind(500, 10052, "{}")
MESSAGE_TOO_LARGE: Final = ErrorKind(400, 10054, "message size exceeds maximum allowed")
MIRROR_NOT_UPDATABLE: Final = ErrorKind(
    400, 10055, "stream mirror configuration can not be updated"
)
STREAM_MISMATCH: Final = ErrorKind(400, 10056, "stream name in subject does not match request")
MESSAGE_DELETE: Final = ErrorKind(500, 10057, "{}")
STREAM_NAME_EXISTS: Final = ErrorKind(
    400, 10058, "stream name already in use with a different configuration"
)
STREAM_NOT_FOUND: Final = ErrorKind(404, 10059, "stream not found")
EXPECTED_STREAM: Final = ErrorKind(400, 10060, "expected stream does not match")
SUBJECTS_OVERLAP: Final = ErrorKind(400, 10065, "subjects overlap with an existing stream")
STREAM_UPDATE: Final = ErrorKind(500, 10069, "{}")
WRONG_LAST_MESSAGE_ID: Final = ErrorKind(400, 10070, "wrong last msg ID: {}")
WRONG_LAST_SEQUENCE: Final = ErrorKind(400, 10071, "wrong last sequence: {}")
REPLICAS_UNSUPPORTED: Final = ErrorKind(
    500, 10074, "replicas > 1 not supported in non-clustered mode"
)
STORE_FAILED: Final = ErrorKind(503, 10077, "{}")
DELIVER_TO_WILDCARDS: Final = ErrorKind(400, 10079, "consumer deliver subject has wildcards")
PUSH_WITH_MAX_WAITING: Final = ErrorKind(
    400, 10080, "consumer in push mode can not set max waiting"
)
DELIVER_CYCLE: Final = ErrorKind(400, 10081, "consumer deliver subject forms a cycle")
HEARTBEAT_TOO_SMALL: Final = ErrorKind(400, 10083, "consumer idle heartbeat needs to be >= 100ms")
WORKQUEUE_PULL_REQUIRES_ACK: Final = ErrorKind(
    400, 10084, "consumer in pull mode requires explicit ack policy on workqueue stream"
)
PULL_WITH_RATE_LIMIT: Final = ErrorKind(
    400, 10086, "consumer in pull mode can not have rate limit set"
)
HEARTBEAT_REQUIRES_PUSH: Final = ErrorKind(
    400, 10088, "consumer idle heartbeat requires a push based consumer"
)
FLOW_CONTROL_REQUIRES_PUSH: Final = ErrorKind(
    400, 10089, "consumer flow control requires a push based consumer"
)
DIRECT_REQUIRES_PUSH: Final = ErrorKind(
    400, 10090, "consumer direct requires a push based consumer"
)
DELIVER_POLICY_INVALID: Final = ErrorKind(400, 10094, "{}")
SAMPLING_INVALID: Final = ErrorKind(
    400, 10095, "failed to parse consumer sampling configuration: {}"
)
HEADERS_TOO_LARGE: Final = ErrorKind(400, 10097, "header size exceeds maximum allowed of 64k")
WORKQUEUE_REQUIRES_EXPLICIT_ACK: Final = ErrorKind(
    400, 10098, "workqueue stream requires explicit ack"
)
WORKQUEUE_MULTIPLE_UNFILTERED: Final = ErrorKind(
    400, 10099, "multiple non-filtered consumers not allowed on workqueue stream"
)
WORKQUEUE_NOT_UNIQUE: Final = ErrorKind(
    400, 10100, "filtered consumer not unique on workqueue stream"
)
WORKQUEUE_NOT_DELIVER_ALL: Final = ErrorKind(
    400, 10101, "consumer must be deliver all on workqueue stream"
)
CONSUMER_NAME_TOO_LONG: Final = ErrorKind(
    400, 10102, "consumer name is too long, maximum allowed is {}"
)
CONSUMER_EXISTS_ACTIVE: Final = ErrorKind(400, 10105, "consumer already exists and is still active")
CONSUMER_DESCRIPTION_TOO_LONG: Final = ErrorKind(
    400, 10107, "consumer description is too long, maximum allowed is {}"
)
FLOW_CONTROL_NEEDS_HEARTBEATS: Final = ErrorKind(
    400, 10108, "consumer with flow control also needs heartbeats"
)
STREAM_SEALED: Final = ErrorKind(400, 10109, "invalid operation on sealed stream")
PURGE_FAILED: Final = ErrorKind(500, 10110, "{}")
ROLLUP_FAILED: Final = ErrorKind(500, 10111, "{}")
DELIVER_SUBJECT_INVALID: Final = ErrorKind(400, 10112, "invalid push consumer deliver subject")
MAX_EXPIRES_TOO_SMALL: Final = ErrorKind(
    400, 10115, "consumer max request expires needs to be >= 1ms"
)
MAX_DELIVER_BELOW_BACKOFF: Final = ErrorKind(
    400, 10116, "max deliver is required to be > length of backoff values"
)
MAX_ACK_PENDING_EXCEEDED: Final = ErrorKind(
    400, 10121, "consumer max ack pending exceeds system limit of {}"
)
CONSUMER_NAME_WITH_SEPARATORS: Final = ErrorKind(
    400, 10127, "Consumer name can not contain path separators"
)
FILTER_MISMATCH: Final = ErrorKind(
    400,
    10131,
    "Consumer create request did not match filtered subject from create subject",
)
REPLICAS_NEGATIVE: Final = ErrorKind(400, 10133, "replicas count cannot be negative")
CONSUMER_METADATA_TOO_LARGE: Final = ErrorKind(
    400, 10135, "consumer metadata exceeds maximum size of {}"
)
BOTH_FILTERS: Final = ErrorKind(
    400, 10136, "consumer cannot have both FilterSubject and FilterSubjects specified"
)
FILTERS_IN_SUBJECT: Final = ErrorKind(
    400, 10137, "consumer with multiple subject filters cannot use subject based API"
)
FILTERS_OVERLAP: Final = ErrorKind(400, 10138, "consumer subject filters cannot overlap")
FILTER_EMPTY: Final = ErrorKind(400, 10139, "consumer filter in FilterSubjects cannot be empty")
SOURCE_DUPLICATE: Final = ErrorKind(400, 10140, "duplicate source configuration detected")
SOURCE_NAME_INVALID: Final = ErrorKind(400, 10141, "sourced stream name is invalid")
MIRROR_NAME_INVALID: Final = ErrorKind(400, 10142, "mirrored stream name is invalid")
MIRROR_WITH_FIRST_SEQ: Final = ErrorKind(
    400, 10143, "stream mirrors can not have first sequence configured"
)
SOURCE_WITH_BOTH_FILTERS: Final = ErrorKind(
    400,
    10144,
    "source with multiple subject transforms cannot also have a single subject filter",
)
SOURCE_FILTER_INVALID: Final = ErrorKind(400, 10145, "source transform source: {}")
SOURCE_TRANSFORM_INVALID: Final = ErrorKind(400, 10146, "source transform: {}")
SOURCE_FILTERS_OVERLAP: Final = ErrorKind(400, 10147, "source filters can not overlap")
CONSUMER_EXISTS: Final = ErrorKind(400, 10148, "consumer already exists")
CONSUMER_DOES_NOT_EXIST: Final = ErrorKind(400, 10149, "consumer does not exist")
INACTIVE_THRESHOLD_EXCEEDED: Final = ErrorKind(
    400, 10153, "consumer inactive threshold exceeds system limit of {}"
)
PEDANTIC: Final = ErrorKind(400, 10157, "pedantic mode: {}")
PRIORITY_POLICY_WITHOUT_GROUP: Final = ErrorKind(
    400, 10159, "Setting PriorityPolicy requires at least one PriorityGroup to be set"
)
PRIORITY_GROUP_UNKNOWN: Final = ErrorKind(
    400, 10160, "Provided priority group does not exist for this consumer"
)
PRIORITY_GROUP_EMPTY: Final = ErrorKind(400, 10161, "Group name cannot be an empty string")
PRIORITY_GROUP_INVALID: Final = ErrorKind(
    400,
    10162,
    "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters",
)
WRONG_SEQUENCE_IN_BATCH: Final = ErrorKind(400, 10164, "wrong last sequence")
TTL_INVALID: Final = ErrorKind(400, 10165, "invalid per-message TTL")
TTL_DISABLED: Final = ErrorKind(400, 10166, "per-message TTL is disabled")
COUNTERS_DISABLED: Final = ErrorKind(400, 10168, "message counters is disabled")
INCREMENT_MISSING: Final = ErrorKind(400, 10169, "message counter increment is missing")
INCREMENT_WITH_PAYLOAD: Final = ErrorKind(400, 10170, "message counter has payload")
INCREMENT_INVALID: Final = ErrorKind(400, 10171, "message counter increment is invalid")
COUNTER_BROKEN: Final = ErrorKind(400, 10172, "message counter is broken")
MIRROR_WITH_COUNTERS: Final = ErrorKind(
    400, 10173, "stream mirrors can not also calculate counters"
)
ATOMIC_DISABLED: Final = ErrorKind(400, 10174, "atomic publish is disabled")
BATCH_SEQUENCE_MISSING: Final = ErrorKind(400, 10175, "atomic publish sequence is missing")
BATCH_INCOMPLETE: Final = ErrorKind(400, 10176, "atomic publish batch is incomplete")
BATCH_HEADER_UNSUPPORTED: Final = ErrorKind(
    400, 10177, "atomic publish unsupported header used: {}"
)
PUSH_WITH_PRIORITY_GROUP: Final = ErrorKind(
    400, 10178, "priority groups can not be used with push consumers"
)
BATCH_ID_INVALID: Final = ErrorKind(400, 10179, "atomic publish batch ID is invalid")
ACK_WAIT_NEGATIVE: Final = ErrorKind(400, 10183, "consumer ack wait needs to be positive")
BACKOFF_NEGATIVE: Final = ErrorKind(400, 10184, "consumer backoff needs to be positive")
API_LEVEL_REQUIRED: Final = ErrorKind(412, 10185, "JetStream minimum api level required")
MIRROR_WITH_SCHEDULES: Final = ErrorKind(
    400, 10186, "stream mirrors can not also schedule messages"
)
SOURCE_WITH_SCHEDULES: Final = ErrorKind(400, 10187, "stream source can not also schedule messages")
SCHEDULES_DISABLED: Final = ErrorKind(400, 10188, "message schedules is disabled")
SCHEDULE_PATTERN_INVALID: Final = ErrorKind(400, 10189, "message schedules pattern is invalid")
SCHEDULE_TARGET_INVALID: Final = ErrorKind(400, 10190, "message schedules target is invalid")
SCHEDULE_TTL_INVALID: Final = ErrorKind(400, 10191, "message schedules invalid per-message TTL")
SCHEDULE_ROLLUP_INVALID: Final = ErrorKind(400, 10192, "message schedules invalid rollup")
EXPECTED_SUBJECT_SEQUENCE_MISSING: Final = ErrorKind(
    400, 10193, "missing sequence for expected last sequence per subject"
)
PRIORITY_GROUP_WITHOUT_POLICY: Final = ErrorKind(
    400, 10196, "consumer can not have priority groups when policy is none"
)
PINNED_TTL_WITHOUT_POLICY: Final = ErrorKind(
    400, 10197, "PinnedTTL cannot be set when PriorityPolicy is none"
)
MIRROR_WITH_ATOMIC: Final = ErrorKind(
    400, 10198, "stream mirrors can not also use atomic publishing"
)
BATCH_TOO_LARGE: Final = ErrorKind(400, 10199, "atomic publish batch is too large: {}")
BATCH_COMMIT_INVALID: Final = ErrorKind(400, 10200, "atomic publish batch commit is invalid")
BATCH_DUPLICATE: Final = ErrorKind(400, 10201, "atomic publish batch contains duplicate message id")
SCHEDULE_SOURCE_INVALID: Final = ErrorKind(400, 10203, "message schedules source is invalid")
RESET_INVALID: Final = ErrorKind(400, 10204, "invalid reset: {}")
FAST_DISABLED: Final = ErrorKind(400, 10205, "batch publish is disabled")
FAST_PATTERN_INVALID: Final = ErrorKind(400, 10206, "batch publish pattern is invalid")
FAST_ID_INVALID: Final = ErrorKind(400, 10207, "batch publish ID is invalid")
FAST_ID_UNKNOWN: Final = ErrorKind(400, 10208, "batch publish ID unknown")
MIRROR_WITH_FAST: Final = ErrorKind(400, 10209, "stream mirrors can not also use batch publishing")
BATCHES_MAX: Final = ErrorKind(429, 10210, "atomic publish too many inflight")
FAST_MAX: Final = ErrorKind(429, 10211, "batch publish too many inflight")
SCHEDULER_INVALID: Final = ErrorKind(400, 10212, "message schedules invalid scheduler")
SCHEDULE_TIME_ZONE_INVALID: Final = ErrorKind(400, 10223, "message schedules time zone is invalid")
SOURCE_HEADER_REFUSED: Final = ErrorKind(400, 10227, "message stream source header is not allowed")
