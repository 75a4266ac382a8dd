"""Names of the keys, under a configurable prefix.

{prefix}/storage/topics/{tenant}/{ns}/{topic}/objects/list/{sequence}   one object of the manifest
{prefix}/storage/topics/{tenant}/{ns}/{topic}/objects/cur               head of the manifest
{prefix}/storage/topics/{tenant}/{ns}/{topic}/upload/session/{sequence} uploads under way
{prefix}/storage/topics/{tenant}/{ns}/{topic}/trash/{object}            to be removed in time
{prefix}/storage/topics/{tenant}/{ns}/{topic}/owner                     who may write; leased
{prefix}/subscriptions/{tenant}/{ns}/{topic}/{subscription}/progress    floor of a subscription
"""

from __future__ import annotations

from typing import Final

from penstock.formats.paths import encode_name
from penstock.model.names import TopicName

DEFAULT_PREFIX: Final = "/penstock"


class Keys:
    """Makes keys; names inside are encoded, so no name can reach another key."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self._prefix = prefix.rstrip("/")

    def topic(self, topic: TopicName) -> str:
        name = encode_name(topic.topic)
        return f"{self._prefix}/storage/topics/{topic.tenant}/{topic.namespace}/{name}"

    def objects(self, topic: TopicName) -> str:
        """Prefix of all objects of a topic's manifest."""
        return f"{self.topic(topic)}/objects/list/"

    def object(self, topic: TopicName, sequence: int) -> str:
        return f"{self.objects(topic)}{sequence:020d}"

    def manifest(self, topic: TopicName) -> str:
        return f"{self.topic(topic)}/objects/cur"

    def upload_session(self, topic: TopicName) -> str:
        return f"{self.topic(topic)}/upload/session"

    def trash(self, topic: TopicName) -> str:
        """Prefix of the objects that wait to be removed."""
        return f"{self.topic(topic)}/trash/"

    def owner(self, topic: TopicName) -> str:
        return f"{self.topic(topic)}/owner"

    def progress(self, topic: TopicName, subscription: str) -> str:
        name = encode_name(topic.topic)
        place = f"{topic.tenant}/{topic.namespace}/{name}/{encode_name(subscription)}"
        return f"{self._prefix}/subscriptions/{place}/progress"
