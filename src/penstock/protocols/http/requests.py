"""Parses names, partition values and offsets in requests; raises BadRequest."""

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
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.errors import BadRequest, FetchOnly
from penstock.protocols.http.routes import Request
from penstock.topics import OpenTopic

QUOTED_CHARACTERS_MAX: Final = 500
"""Limit of the text of a client that an error message quotes."""


async def known_namespace(admin: Admin, text: str) -> Namespace:
    """Parse the name of a namespace, which must exist."""
    try:
        name = names.namespace(text)
    except NameInvalid as error:
        reason = f"invalid namespace format: {shortened(text)} {shortened(error)}"
        raise BadRequest(reason, error.code) from None
    try:
        await admin.get_namespace(name)
    except ResourceUnknown as error:
        raise BadRequest(str(error), error.code) from None
    return name


def topic_within(namespace: Namespace, text: str) -> TopicName:
    """Parse the name of a topic in this namespace; the topic need not exist."""
    try:
        name = names.topic(text, namespace)
    except NameInvalid as error:
        reason = f"invalid topic name: {shortened(text)} {shortened(error)}"
        raise BadRequest(reason, error.code) from None
    if name[:2] != namespace:
        raise BadRequest(f"invalid topic name: {text} is not in {namespace.full}")
    return name


def topic_name(request: Request) -> TopicName:
    """The name of the topic in the path of a request."""
    path = request.path
    namespace = names.namespace(f"{path['tenant']}/{path['namespace']}")
    return topic_within(namespace, path["topic"])


async def opened_topic(backend: Backend, request: Request) -> OpenTopic:
    """The topic in the path of a request; raises OwnedElsewhere unless this broker owns it."""
    if backend.topics is None:
        raise FetchOnly
    return await backend.topics.find(topic_name(request))


def partition(tagged: Any) -> PartitionValue | None:
    """Parse a tagged partition value; returns None for None."""
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


def shortened(value: object) -> str:
    """Text of a client, shortened to be quoted in an error message."""
    text = str(value)
    return text if len(text) <= QUOTED_CHARACTERS_MAX else f"{text[:QUOTED_CHARACTERS_MAX]}..."
