"""Every error Penstock raises on purpose; it carries facts and builds its sentence from them.

PenstockError
├── ConfigError            a setting is unknown, malformed or out of range
├── NameInvalid            a tenant, namespace or topic name breaks the rules
├── StartRefused           the broker cannot start as asked (directory in use, port taken)
├── SchemaInvalid          a topic's columns or partition column break the rules
├── PartitionInvalid       a partition value is missing, unexpected or of another type
├── ResourceError          something about a tenant, namespace or topic as such
│   ├── ResourceUnknown    there is no such one
│   ├── ResourceExists     there is one of this name already
│   └── ResourceInUse      it cannot be deleted, or not yet be made again
├── FetchInvalid           a limit of a fetch is out of range
├── Overloaded             a limit on what runs at once is reached; retry later
├── RunInvalid             a run of messages breaks a limit or is inconsistent
├── IndexUnavailable       subjects cannot be looked up now; says why
├── LogError               something about one topic's log
│   ├── LogClosed          it has been closed
│   ├── LogReadOnly        it cannot be written now; says why
│   ├── OwnedElsewhere     another broker serves the topic; says which
│   ├── AppendQueueFull    its queue of unsynced bytes is at the limit
│   ├── DurabilityUnmet    appended, but the promise of the topic's durability failed
│   ├── OffsetGone         the offset was dropped by retention or purge
│   ├── NotInLog           the offsets are rows of objects, and nobody here reads those
│   ├── ReadFailed         the disk did not give an offset; another time it may
│   └── DataDamaged        acknowledged offsets cannot be read
└── FormatError            bytes are not what their format says
    └── VersionUnknown     written by a later version of Penstock
"""

from __future__ import annotations

from penstock.model.units import Offset, PartitionId


class PenstockError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(PenstockError):
    """A setting is unknown, malformed or out of range."""


class NameInvalid(PenstockError):
    """A resource name breaks the naming rules."""

    def __init__(self, kind: str, name: str, rule: str) -> None:
        super().__init__(f"{kind} name {name!r} is not valid: it must be {rule}")
        self.kind, self.name, self.rule = kind, name, rule


class StartRefused(PenstockError):
    """The broker cannot start as asked; nothing was changed."""


class SchemaInvalid(PenstockError):
    """A topic's columns or partition column break the rules; nothing was made."""


class PartitionInvalid(PenstockError):
    """A partition value is missing, unexpected, malformed or of another type."""


class ResourceError(PenstockError):
    """Something about a tenant, namespace or topic as such."""

    def __init__(self, kind: str, name: str, sentence: str) -> None:
        super().__init__(f"{kind} {name} {sentence}")
        self.kind, self.name = kind, name


class ResourceUnknown(ResourceError):
    """There is no such tenant, namespace or topic."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name, "does not exist")


class ResourceExists(ResourceError):
    """There is one of this name already."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name, "exists already")


class ResourceInUse(ResourceError):
    """It cannot be deleted, or not yet be made again."""


class FetchInvalid(PenstockError):
    """A limit of a fetch is out of range."""


class Overloaded(PenstockError):
    """A limit on what runs at once is reached; nothing was done, and a retry may succeed."""

    def __init__(self, what: str, limit: str, most: int) -> None:
        super().__init__(f"{what}: {limit} is {most}; retry later")
        self.limit, self.most = limit, most


class RunInvalid(PenstockError):
    """A run of messages breaks a limit or does not fit together; nothing was appended."""


class IndexUnavailable(PenstockError):
    """Subjects cannot be looked up now; the index is completed as soon as the cause is gone."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"the subject index in {directory} is not complete: {reason}; retry later")
        self.directory, self.reason = directory, reason


class LogError(PenstockError):
    """Something about the log of one topic."""

    def __init__(self, topic: str, sentence: str) -> None:
        super().__init__(f"topic {topic}: {sentence}")
        self.topic = topic


class LogClosed(LogError):
    """The log has been closed."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, "the log is closed")


class LogReadOnly(LogError):
    """The log cannot be written now; it opens again by itself when the cause is gone."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, f"cannot be written now: {reason}")
        self.reason = reason


class OwnedElsewhere(LogError):
    """Another broker serves the topic: ask there."""

    def __init__(self, topic: str, broker: str, address: str) -> None:
        super().__init__(topic, f"another broker owns it: {broker} at {address}; ask there")
        self.broker, self.address = broker, address


class AppendQueueFull(LogError):
    """The queue of bytes waiting for the disk is at its limit."""

    def __init__(self, topic: str, pending_bytes: int, pending_bytes_max: int) -> None:
        super().__init__(
            topic,
            f"{pending_bytes} bytes wait to be synced, the limit pending_bytes_max is "
            f"{pending_bytes_max}; retry later",
        )
        self.pending_bytes, self.pending_bytes_max = pending_bytes, pending_bytes_max


class DurabilityUnmet(LogError):
    """The messages were not made durable; they may or may not be found after a restart."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, f"not stored: {reason}")
        self.reason = reason


class OffsetGone(LogError):
    """The offset was dropped by retention or a purge."""

    def __init__(self, topic: str, partition: object, offset: Offset, earliest: Offset) -> None:
        where = "" if partition is None else f"partition {partition}, "
        super().__init__(topic, f"{where}offset {offset} is gone; the earliest is {earliest}")
        self.partition, self.offset, self.earliest = partition, offset, earliest


class NotInLog(LogError):
    """The offsets are rows of objects in the bucket and this reader has no access to those."""

    def __init__(self, topic: str, partition: PartitionId, first: Offset, next_: Offset) -> None:
        super().__init__(
            topic, f"partition {partition}, offsets {first} to {next_ - 1} are in objects only"
        )
        self.partition, self.first, self.next = partition, first, next_


class ReadFailed(LogError):
    """The disk did not give what is stored at the offset; it may be read another time."""

    def __init__(self, topic: str, partition: PartitionId, offset: Offset, reason: str) -> None:
        super().__init__(topic, f"partition {partition}, offset {offset} cannot be read: {reason}")
        self.partition, self.offset, self.reason = partition, offset, reason


class DataDamaged(LogError):
    """Offsets that were given out cannot be read from any tier."""

    def __init__(
        self, topic: str, partition: PartitionId, first: Offset, next_: Offset, cause: str
    ) -> None:
        super().__init__(
            topic, f"partition {partition}, offsets {first} to {next_ - 1} are damaged: {cause}"
        )
        self.partition, self.first, self.next, self.cause = partition, first, next_, cause


class FormatError(PenstockError):
    """Bytes are not what their format says they are."""


class VersionUnknown(FormatError):
    """The bytes were written by a later version of Penstock."""

    def __init__(self, what: str, version: int, known: int) -> None:
        super().__init__(
            f"{what} has format version {version}, this Penstock reads up to {known}: upgrade it"
        )
        self.version, self.known = version, known
