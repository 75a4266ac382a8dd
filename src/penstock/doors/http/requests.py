"""What requests name: namespaces, topics, partition values, numbers; raises BadRequest."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.doors.http.errors import BadRequest
from penstock.metadata.admin import Admin
from penstock.model import names, partition_value
from penstock.model.errors import NameInvalid, PartitionInvalid, ResourceUnknown
from penstock.model.limits import OFFSET_MAX
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Offset

SHOWN_CHARACTERS_MAX: Final = 500


async def known_namespace(admin: Admin, text: str) -> Namespace:
    """A namespace that exists."""
    try:
        name = names.namespace(text)
    except NameInvalid as error:
        raise BadRequest(f"invalid namespace format: {brief(text)} {brief(error)}") from None
    try:
        await admin.get_namespace(name)
    except ResourceUnknown as error:
        raise BadRequest(str(error)) from None
    return name


def topic_within(namespace: Namespace, text: str) -> TopicName:
    """A topic of this namespace, whether it exists or not."""
    try:
        name = names.topic(text, namespace)
    except NameInvalid as error:
        raise BadRequest(f"invalid topic name: {brief(text)} {brief(error)}") from None
    if name[:2] != namespace:
        raise BadRequest(f"invalid topic name: {text} is not in {namespace.full}")
    return name


def partition(tagged: Any) -> PartitionValue | None:
    """A tagged partition value; None stays None."""
    try:
        return None if tagged is None else partition_value.of_json(tagged)
    except PartitionInvalid as error:
        raise BadRequest(str(error)) from None


def partition_text(text: str | None) -> PartitionValue | None:
    """The same as JSON text, as it stands in a query."""
    if text is None:
        return None
    try:
        return partition(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest(
            f'partition value {text[:200]!r} is not JSON such as {{"Int64":7}}'
        ) from None


def offset(name: str, text: str) -> Offset:
    """An offset as it stands in a query."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > OFFSET_MAX:
        raise BadRequest(f"{name} must be a whole number from 0 to {OFFSET_MAX}")
    return Offset(int(text))


def brief(what: object) -> str:
    """What a client sent, at a length fit for a message."""
    text = str(what)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}..."
