"""Names of the keys, under a configurable prefix.

{prefix}/storage/topics/{tenant}/{ns}/{topic}/objects/list/{sequence}   one object of the manifest
{prefix}/storage/topics/{tenant}/{ns}/{topic}/objects/cur               head of the manifest
{prefix}/storage/topics/{tenant}/{ns}/{topic}/objects/links/{number}    an application's last link
{prefix}/storage/topics/{tenant}/{ns}/{topic}/upload/session/{sequence}-{object} under way
{prefix}/storage/topics/{tenant}/{ns}/{topic}/trash/{object}            to be removed in time
{prefix}/storage/topics/{tenant}/{ns}/{topic}/owner                     who may write; leased
{prefix}/storage/topics/{tenant}/{ns}/{topic}/partitions/{id}           value of a partition
{prefix}/storage/topics/{tenant}/{ns}/{topic}/stream                    as a stream
{prefix}/catalog/tenants/{tenant}                                       a tenant
{prefix}/catalog/namespaces/{tenant}/{ns}                               a namespace
{prefix}/catalog/topics/{tenant}/{ns}/{topic}                           a topic
{prefix}/subscriptions/{tenant}/{ns}/{topic}/{subscription}/progress    floor of a subscription
{prefix}/subscriptions/{tenant}/{ns}/{topic}/{subscription}/consumer    a NATS consumer
{prefix}/subscriptions/{tenant}/{ns}/{topic}/jobs                       floors of its jobs
{prefix}/channels/seed                                                  what was seeded last
{prefix}/channels/producer/{producer}                                   who may broadcast
{prefix}/channels/channel/{channel}                                     a topic as a channel
{prefix}/channels/consumer/{channel}/{consumer}                         who gets its messages
{prefix}/channels/scheduled/{channel}/{message}                         a message for later
"""

from __future__ import annotations

from typing import Final

from penstock.formats.paths import encode_name
from penstock.model.names import Namespace, TopicName

DEFAULT_PREFIX: Final = "/penstock"


class Keys:
    """Makes keys; no name can reach the key of another.

    Where keys are listed for people, names stand as they are: they hold no slash, and sort by name.
    """

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

    def links(self, topic: TopicName) -> str:
        """Prefix of what a topic's manifest tells of applications that link."""
        return f"{self.topic(topic)}/objects/links/"

    def link(self, topic: TopicName, number: int) -> str:
        return f"{self.links(topic)}{number:020d}"

    def manifest(self, topic: TopicName) -> str:
        return f"{self.topic(topic)}/objects/cur"

    def upload_session(self, topic: TopicName) -> str:
        return f"{self.topic(topic)}/upload/session"

    def trash(self, topic: TopicName) -> str:
        """Prefix of the objects that wait to be removed."""
        return f"{self.topic(topic)}/trash/"

    def owner(self, topic: TopicName) -> str:
        return f"{self.topic(topic)}/owner"

    def stream(self, topic: TopicName) -> str:
        return f"{self.topic(topic)}/stream"

    def partitions(self, topic: TopicName) -> str:
        """Prefix of the values of a topic's partitions."""
        return f"{self.topic(topic)}/partitions/"

    def partition(self, topic: TopicName, partition: int) -> str:
        return f"{self.partitions(topic)}{partition:010d}"

    def tenants(self) -> str:
        """Prefix of all tenants."""
        return f"{self._prefix}/catalog/tenants/"

    def tenant(self, tenant: str) -> str:
        return f"{self.tenants()}{tenant}"

    def namespaces(self, tenant: str) -> str:
        """Prefix of a tenant's namespaces."""
        return f"{self._prefix}/catalog/namespaces/{tenant}/"

    def namespace(self, name: Namespace) -> str:
        return f"{self.namespaces(name.tenant)}{name.namespace}"

    def catalog(self) -> str:
        """Prefix of all topics' records."""
        return f"{self._prefix}/catalog/topics/"

    def namespace_topics(self, name: Namespace) -> str:
        """Prefix of the records of a namespace's topics."""
        return f"{self.catalog()}{name}/"

    def topic_record(self, topic: TopicName) -> str:
        return f"{self.catalog()}{topic}"

    def subscriptions(self, topic: TopicName) -> str:
        """Prefix of what is kept of a topic's subscriptions."""
        place = f"{topic.tenant}/{topic.namespace}/{encode_name(topic.topic)}"
        return f"{self._prefix}/subscriptions/{place}/"

    def consumer(self, topic: TopicName, subscription: str) -> str:
        """The record of a NATS consumer."""
        return f"{self.subscriptions(topic)}{encode_name(subscription)}/consumer"

    def progress(self, topic: TopicName, subscription: str) -> str:
        return f"{self.subscriptions(topic)}{encode_name(subscription)}/progress"

    def job_floors(self, topic: TopicName) -> str:
        return f"{self.subscriptions(topic)}jobs"

    def channels(self) -> str:
        """Prefix of all that is kept of channels."""
        return f"{self._prefix}/channels/"

    def channel_seed(self) -> str:
        return f"{self.channels()}seed"

    def producer(self, producer: str) -> str:
        return f"{self.channels()}producer/{encode_name(producer)}"

    def channel(self, channel: str) -> str:
        return f"{self.channels()}channel/{encode_name(channel)}"

    def channel_consumer(self, channel: str, consumer: str) -> str:
        return f"{self.channels()}consumer/{encode_name(channel)}/{encode_name(consumer)}"

    def scheduled(self, channel: str, message: str) -> str:
        return f"{self.channels()}scheduled/{encode_name(channel)}/{encode_name(message)}"
