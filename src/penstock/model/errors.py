"""Every error that Penstock raises on purpose. It carries facts and builds its message from them.

Each class has a stable `code`, which protocols send with the message. Errors about resources have
a code for each kind of resource: `topic_not_found`, `tenant_exists`, `namespace_in_use`.

PenstockError
├── ConfigError            a setting is unknown, malformed or out of range
├── NameInvalid            a tenant, namespace or topic name breaks the rules
├── StartRefused           the broker cannot start as configured (directory in use, port taken)
├── SchemaInvalid          a topic's columns or partition column break the rules
├── PartitionInvalid       a partition value is missing, unexpected or of another type
├── ResourceError          an error about a tenant, namespace or topic
│   ├── ResourceUnknown    the resource does not exist
│   ├── ResourceExists     the name is in use
│   └── ResourceInUse      the resource cannot be deleted, or not be created again yet
├── FetchInvalid           a limit of a fetch is out of range
├── Overloaded             a limit on concurrent work is reached; retry later
├── RunInvalid             a run of messages breaks a limit or is inconsistent
├── IndexUnavailable       the subject index is incomplete for now
├── LogError               an error about the log of one topic
│   ├── LogClosed          the log is closed
│   ├── LogReadOnly        the log cannot be written for now
│   ├── OwnedElsewhere     another broker owns the topic
│   ├── AppendQueueFull    the queue of unsynced bytes is at its limit
│   ├── SignatureRequired  the topic is a channel that accepts signed broadcasts only
│   ├── DurabilityUnmet    the messages are appended, but not as durable as the topic promises
│   ├── OffsetGone         retention or a purge deleted the offset
│   ├── NotInLog           the offsets are rows of objects, which this reader cannot access
│   ├── ReadFailed         the disk failed to read an offset; a retry may succeed
│   └── DataDamaged        acknowledged offsets cannot be read
└── FormatError            bytes do not follow their format
    └── VersionUnknown     a later version of Penstock wrote the bytes
"""

from __future__ import annotations

from penstock.model.units import Offset, PartitionId


class PenstockError(Exception):
    """Base of all errors raised on purpose."""

    code: str = "internal"
    """Identifies the error to programs; it does not change between versions of Penstock."""


class ConfigError(PenstockError):
    """A setting is unknown, malformed or out of range."""

    code = "config_invalid"


class NameInvalid(PenstockError):
    """A resource name breaks the naming rules."""

    code = "name_invalid"

    def __init__(self, kind: str, name: str, rule: str) -> None:
        super().__init__(f"{kind} name {name!r} is not valid: it must be {rule}")
        self.kind, self.name, self.rule = kind, name, rule


class StartRefused(PenstockError):
    """The broker cannot start as configured; nothing was changed."""

    code = "start_refused"


class SchemaInvalid(PenstockError):
    """A topic's columns or partition column break the rules; nothing was created."""

    code = "schema_invalid"


class PartitionInvalid(PenstockError):
    """A partition value is missing, unexpected, malformed or of another type."""

    code = "partition_invalid"


class ResourceError(PenstockError):
    """An error about a tenant, namespace or topic."""

    code = "resource_error"

    def __init__(self, kind: str, name: str, sentence: str) -> None:
        super().__init__(f"{kind} {name} {sentence}")
        self.kind, self.name, self.sentence = kind, name, sentence
        self.code = type(self).code.replace("resource", kind.replace(" ", "_"))


class ResourceUnknown(ResourceError):
    """The tenant, namespace or topic does not exist."""

    code = "resource_not_found"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name, "does not exist")


class ResourceExists(ResourceError):
    """A resource of this name exists already."""

    code = "resource_exists"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name, "exists already")


class ResourceInUse(ResourceError):
    """The resource cannot be deleted, or not be created again yet."""

    code = "resource_in_use"


class FetchInvalid(PenstockError):
    """A limit of a fetch is out of range."""

    code = "fetch_invalid"


class Overloaded(PenstockError):
    """A limit on concurrent work is reached; nothing was done, and a retry may succeed."""

    code = "overloaded"

    def __init__(self, what: str, limit: str, most: int) -> None:
        super().__init__(f"{what}: {limit} is {most}; retry later")
        self.what, self.limit, self.most = what, limit, most


class RunInvalid(PenstockError):
    """A run of messages breaks a limit or does not fit together; nothing was appended."""

    code = "messages_invalid"


class IndexUnavailable(PenstockError):
    """The subject index is incomplete; it is completed as soon as the cause is gone."""

    code = "index_unavailable"

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"the subject index in {directory} is not complete: {reason}; retry later")
        self.directory, self.reason = directory, reason


class LogError(PenstockError):
    """An error about the log of one topic."""

    code = "log_error"

    def __init__(self, topic: str, sentence: str) -> None:
        super().__init__(f"topic {topic}: {sentence}")
        self.topic = topic


class LogClosed(LogError):
    """The log is closed."""

    code = "log_closed"

    def __init__(self, topic: str) -> None:
        super().__init__(topic, "the log is closed")


class LogReadOnly(LogError):
    """The log cannot be written for now; it reopens by itself when the cause is gone."""

    code = "log_read_only"

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, f"cannot be written now: {reason}")
        self.reason = reason


class OwnedElsewhere(LogError):
    """Another broker owns the topic; requests have to go to its address."""

    code = "owned_elsewhere"

    def __init__(self, topic: str, broker: str, address: str) -> None:
        super().__init__(topic, f"another broker owns it: {broker} at {address}; ask there")
        self.broker, self.address = broker, address


class AppendQueueFull(LogError):
    """The queue of bytes to write and sync is at its limit."""

    code = "append_queue_full"

    def __init__(self, topic: str, pending_bytes: int, pending_bytes_max: int) -> None:
        super().__init__(
            topic,
            f"{pending_bytes} bytes wait to be synced, the limit pending_bytes_max is "
            f"{pending_bytes_max}; retry later",
        )
        self.pending_bytes, self.pending_bytes_max = pending_bytes, pending_bytes_max


class SignatureRequired(LogError):
    """The topic is a channel that accepts signed broadcasts only; nothing was appended."""

    code = "signature_required"

    def __init__(self, topic: str) -> None:
        super().__init__(
            topic,
            "is a channel behind a gateway and takes signed broadcasts only:"
            " use POST /channel/{channel}/broadcast",
        )


class DurabilityUnmet(LogError):
    """The messages were not made durable; they may or may not be found after a restart."""

    code = "durability_unmet"

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, f"not stored: {reason}")
        self.reason = reason


class OffsetGone(LogError):
    """Retention or a purge deleted the offset."""

    code = "offset_gone"

    def __init__(self, topic: str, partition: object, offset: Offset, earliest: Offset) -> None:
        where = "" if partition is None else f"partition {partition}, "
        super().__init__(topic, f"{where}offset {offset} is gone; the earliest is {earliest}")
        self.partition, self.offset, self.earliest = partition, offset, earliest


class NotInLog(LogError):
    """The offsets are rows of objects in the bucket and this reader has no access to those."""

    code = "not_in_log"

    def __init__(self, topic: str, partition: PartitionId, first: Offset, next_: Offset) -> None:
        super().__init__(
            topic, f"partition {partition}, offsets {first} to {next_ - 1} are in objects only"
        )
        self.partition, self.first, self.next = partition, first, next_


class ReadFailed(LogError):
    """The disk failed to read the offset; a retry may succeed."""

    code = "read_failed"

    def __init__(self, topic: str, partition: PartitionId, offset: Offset, reason: str) -> None:
        super().__init__(topic, f"partition {partition}, offset {offset} cannot be read: {reason}")
        self.partition, self.offset, self.reason = partition, offset, reason


class DataDamaged(LogError):
    """Acknowledged offsets cannot be read from any tier."""

    code = "data_damaged"

    def __init__(
        self, topic: str, partition: PartitionId, first: Offset, next_: Offset, cause: str
    ) -> None:
        super().__init__(
            topic, f"partition {partition}, offsets {first} to {next_ - 1} are damaged: {cause}"
        )
        self.partition, self.first, self.next, self.cause = partition, first, next_, cause


class FormatError(PenstockError):
    """Bytes do not follow their format."""

    code = "format_invalid"


class VersionUnknown(FormatError):
    """A later version of Penstock wrote the bytes."""

    code = "version_unknown"

    def __init__(self, what: str, version: int, known: int) -> None:
        super().__init__(
            f"{what} has format version {version}, this Penstock reads up to {known}: upgrade it"
        )
        self.version, self.known = version, known
