"""Producers, channels, consumers and scheduled messages as they are kept: JSON, secrets sealed."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock.metadata.interface import MetadataEntry, Revision
from penstock.metadata.sealing import Sealing
from penstock.model.errors import FormatError, VersionUnknown

RECORD_VERSION: Final = 1
PUSH: Final = "push"
PULL: Final = "pull"


class Producer(msgspec.Struct, frozen=True):
    """Who may broadcast."""

    id: str
    name: str
    token: str
    created_us: int
    updated_us: int
    version: int = RECORD_VERSION


class Channel(msgspec.Struct, frozen=True):
    """A topic of the default namespace with the same id."""

    id: str
    name: str
    token: str
    key: str
    """Makes the ids of its jobs and messages."""
    consumers: int
    """How many consumers it ever had."""
    created_us: int
    updated_us: int
    version: int = RECORD_VERSION


class Consumer(msgspec.Struct, frozen=True):
    """Who gets the messages of a channel."""

    channel: str
    id: str
    name: str
    token: str
    callback_url: str
    type: str
    """`push` or `pull`."""
    number: int
    """Within its channel; never given again."""
    topic: str
    """Which topic of the channel's name `start` is about."""
    start: int
    """The first message it gets."""
    secrets: list[str]
    """What deliveries are signed with, the newest first."""
    created_us: int
    updated_us: int
    rotated_us: int = 0
    disabled: str = ""
    """Why nothing is pushed to it; empty when it is."""
    rate_per_second: int = 0
    """0: no limit."""
    concurrency: int = 0
    """0: as configured."""
    version: int = RECORD_VERSION


class Scheduled(msgspec.Struct, frozen=True):
    """A message for later; its payload goes once it is sent."""

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
    """0: not yet."""
    version: int = RECORD_VERSION


Record = Producer | Channel | Consumer | Scheduled
_T = TypeVar("_T", Producer, Channel, Consumer, Scheduled)


class Kept(NamedTuple):
    """A record and the revision of its key; 0 before it is kept."""

    record: Record
    revision: Revision


class _Version(msgspec.Struct):
    version: int


def encode(record: Record, sealing: Sealing) -> bytes:
    if isinstance(record, Producer | Channel | Consumer):
        record = msgspec.structs.replace(record, token=sealing.seal(record.token))
    if isinstance(record, Channel):
        record = msgspec.structs.replace(record, key=sealing.seal(record.key))
    if isinstance(record, Consumer):
        secrets = [sealing.seal(secret) for secret in record.secrets]
        record = msgspec.structs.replace(record, secrets=secrets)
    return msgspec.json.encode(record)


def decode(entry: MetadataEntry, kind: type[_T], sealing: Sealing) -> _T:
    """Raises FormatError."""
    try:
        version = msgspec.json.decode(entry.value, type=_Version).version
        if version > RECORD_VERSION:
            raise VersionUnknown(f"the record {entry.key}", version, RECORD_VERSION)
        record = msgspec.json.decode(entry.value, type=kind)
        if isinstance(record, Producer | Channel | Consumer):
            record = msgspec.structs.replace(record, token=sealing.unseal(record.token))
        if isinstance(record, Channel):
            record = msgspec.structs.replace(record, key=sealing.unseal(record.key))
        if isinstance(record, Consumer):
            opened = [sealing.unseal(secret) for secret in record.secrets]
            record = msgspec.structs.replace(record, secrets=opened)
        return record
    except msgspec.DecodeError as error:
        raise FormatError(f"the record {entry.key} is damaged: {error}") from error
