"""Entities of channels, and their records in the metadata store: JSON with sealed secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from penstock.delivery.channels.sealing import Sealing
from penstock.metadata import MetadataEntry, Revision
from penstock.model.errors import FormatError, VersionUnknown

RECORD_VERSION: Final = 1
PUSH: Final = "push"
PULL: Final = "pull"


class Producer(msgspec.Struct, frozen=True):
    """A client that may broadcast."""

    id: str
    name: str
    token: str
    created_us: int
    updated_us: int
    version: int = RECORD_VERSION


class Channel(msgspec.Struct, frozen=True):
    """A channel. Its messages are in the topic of the default namespace with the same id."""

    id: str
    name: str
    token: str
    key: str
    """Key of the hashes in the ids of its jobs and messages."""
    endpoints_created: int = msgspec.field(name="consumers")
    """How many endpoints it ever had; the number of the newest one."""
    created_us: int
    updated_us: int
    version: int = RECORD_VERSION


class Endpoint(msgspec.Struct, frozen=True):
    """A consumer of a channel: its callback receives the messages, or it pulls jobs."""

    channel: str
    id: str
    name: str
    token: str
    callback_url: str
    type: str
    """`push` or `pull`."""
    number: int
    """Its number within the channel; numbers are never reused."""
    topic_uid: str = msgspec.field(name="topic")
    """Incarnation of the topic that `start_offset` refers to."""
    start_offset: int = msgspec.field(name="start")
    """Offset of the first message it receives."""
    secrets: list[str]
    """Signing secrets, newest first."""
    created_us: int
    updated_us: int
    rotated_us: int = 0
    disabled_reason: str = msgspec.field(name="disabled", default="")
    """Why nothing is pushed to it; empty while it is enabled."""
    rate_per_second: int = 0
    """Maximum deliveries a second (0 = no limit)."""
    concurrency: int = 0
    """Maximum concurrent deliveries (0 = the configured default)."""
    version: int = RECORD_VERSION


class ScheduledMessage(msgspec.Struct, frozen=True):
    """A message to be broadcast later; its payload is removed once it is sent."""

    channel: str
    id: str
    producer: str
    content_type: str
    priority: int
    headers: list[tuple[str, str]]
    payload: bytes
    due_us: int
    created_us: int
    sent_us: int = 0
    """When it was broadcast; 0 before that."""
    version: int = RECORD_VERSION


Entity = Producer | Channel | Endpoint | ScheduledMessage
_T = TypeVar("_T", Producer, Channel, Endpoint, ScheduledMessage)
_E_co = TypeVar("_E_co", bound=Entity, covariant=True)
_E = TypeVar("_E", bound=Entity)

_SECRET_FIELDS: Final[dict[type, tuple[str, ...]]] = {
    Producer: ("token",),
    Channel: ("token", "key"),
    Endpoint: ("token", "secrets"),
    ScheduledMessage: (),
}


class Versioned(NamedTuple, Generic[_E_co]):
    """An entity and the revision of its key; 0 before it is stored."""

    entity: _E_co
    revision: Revision


class _Version(msgspec.Struct):
    version: int


def encode(entity: Entity, sealing: Sealing) -> bytes:
    """The stored record of an entity."""
    return msgspec.json.encode(_map_secrets(entity, sealing.seal))


def decode(entry: MetadataEntry, kind: type[_T], sealing: Sealing) -> _T:
    """The entity in a record; raises FormatError, VersionUnknown."""
    try:
        version = msgspec.json.decode(entry.value, type=_Version).version
        if version > RECORD_VERSION:
            raise VersionUnknown(f"the record {entry.key}", version, RECORD_VERSION)
        return _map_secrets(msgspec.json.decode(entry.value, type=kind), sealing.unseal)
    except msgspec.DecodeError as error:
        raise FormatError(f"the record {entry.key} is damaged: {error}") from error


def _map_secrets(entity: _E, convert: Callable[[str], str]) -> _E:
    """The entity with every secret converted."""
    changes: dict[str, Any] = {}
    for field in _SECRET_FIELDS[type(entity)]:
        secret = getattr(entity, field)
        changes[field] = list(map(convert, secret)) if field == "secrets" else convert(secret)
    return msgspec.structs.replace(entity, **changes)
