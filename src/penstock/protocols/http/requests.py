"""Parses what requests name: namespaces, topics, partition values, offsets; raises BadRequest."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.metadata.catalog import Admin
from penstock.model import names, partition_value
from penstock.model.errors import NameInvalid, PartitionInvalid, ResourceUnknown
from penstock.model.limits import OFFSET_MAX
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.units import Offset
from penstock.protocols.http.errors import BadRequest

SHOWN_CHARACTERS_MAX: Final = 500


async def known_namespace(admin: Admin, text: str) -> Namespace:
    """Parse the name of a namespace, which must exist."""
    try:
        name = names.namespace(text)
    except NameInvalid as error:
        reason = f"invalid namespace format: {brief(text)} {brief(error)}"
        raise BadRequest(reason, error.code) from None
    try:
        await admin.get_namespace(name)
    except ResourceUnknown as error:
        raise BadRequest(str(error), error.code) from None
    return name


def topic_within(namespace: Namespace, text: str) -> TopicName:
    """Parse the name of a topic of this namespace; the topic need not exist."""
    try:
        name = names.topic(text, namespace)
    except NameInvalid as error:
        reason = f"invalid topic name: {brief(text)} {brief(error)}"
        raise BadRequest(reason, error.code) from None
    if name[:2] != namespace:
        raise BadRequest(f"invalid topic name: {text} is not in {namespace.full}")
    return name


def partition(tagged: Any) -> PartitionValue | None:
    """Parse a tagged partition value; None stays None."""
    try:
        return None if tagged is None else partition_value.of_json(tagged)
    except PartitionInvalid as error:
        raise BadRequest(str(error), error.code) from None


def partition_text(text: str | None) -> PartitionValue | None:
    """Parse a tagged partition value from the JSON text of a query parameter."""
    if text is None:
        return None
    try:
        return partition(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest(
            f'partition value {text[:200]!r} is not JSON such as {{"Int64":7}}'
        ) from None


def offset(name: str, text: str) -> Offset:
    """Parse an offset from the text of a query parameter."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > OFFSET_MAX:
        raise BadRequest(f"{name} must be a whole number from 0 to {OFFSET_MAX}")
    return Offset(int(text))


def brief(what: object) -> str:
    """Text of a client, cut to a length that suits an error message."""
    text = str(what)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}..."
