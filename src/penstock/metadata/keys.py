"""The names of all keys in the metadata store, below a configurable prefix.

{prefix}/storage/topics/{tenant}/{ns}/{topic}/objects/list/{sequence}   one object of the manifest
{prefix}/storage/topics/{tenant}/{ns}/{topic}/objects/cur               the head of the manifest
{prefix}/storage/topics/{tenant}/{ns}/{topic}/objects/links/{number}    an application's last link
{prefix}/storage/topics/{tenant}/{ns}/{topic}/upload/session/{sequence}-{object} a running upload
{prefix}/storage/topics/{tenant}/{ns}/{topic}/trash/{object}            object to delete later
{prefix}/storage/topics/{tenant}/{ns}/{topic}/owner                     owning broker, leased
{prefix}/storage/topics/{tenant}/{ns}/{topic}/partitions/{id}           the value of a partition
{prefix}/storage/topics/{tenant}/{ns}/{topic}/stream                    its stream
{prefix}/returned/{tenant}/{ns}/{topic}/{lineage}/{number}              an object that fills a gap
{prefix}/returned/{tenant}/{ns}/{topic}/{lineage}/complete              marks the end
{prefix}/catalog/tenants/{tenant}                                       a tenant
{prefix}/catalog/namespaces/{tenant}/{ns}                               a namespace
{prefix}/catalog/topics/{tenant}/{ns}/{topic}                           a topic
{prefix}/subscriptions/{tenant}/{ns}/{topic}/{subscription}/progress    position of a subscription
{prefix}/subscriptions/{tenant}/{ns}/{topic}/{subscription}/consumer    record of a NATS consumer
{prefix}/subscriptions/{tenant}/{ns}/{topic}/jobs                       the floors of its jobs
{prefix}/channels/seed                                                  the digest of the last seed
{prefix}/channels/producer/{producer}                                   a producer of channels
{prefix}/channels/channel/{channel}                                     configuration of a channel
{prefix}/channels/consumer/{channel}/{consumer}                         a consumer of a channel
{prefix}/channels/scheduled/{channel}/{message}                         a scheduled message
"""

from __future__ import annotations

from typing import Final

from penstock.formats.paths import encode_name
from penstock.model.names import Namespace, TopicName

DEFAULT_PREFIX: Final = "/penstock"


class MetadataKeys:
    """Makes keys; different names never result in one key.

    Keys of the catalog contain names unencoded, which have no slash, so that lists sort by name.
    """

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self._prefix = prefix.rstrip("/")
        self.channel_keys = ChannelKeys(self._prefix)

    def topic(self, topic: TopicName) -> str:
        name = encode_name(topic.topic)
        return f"{self._prefix}/storage/topics/{topic.tenant}/{topic.namespace}/{name}"

    def objects(self, topic: TopicName) -> str:
        """Prefix of all objects of a topic's manifest."""
        return f"{self.topic(topic)}/objects/list/"

    def object(self, topic: TopicName, sequence: int) -> str:
        return f"{self.objects(topic)}{sequence:020d}"

    def links(self, topic: TopicName) -> str:
        """Prefix of the last links of applications in a topic's manifest."""
        return f"{self.topic(topic)}/objects/links/"

    def link(self, topic: TopicName, number: int) -> str:
        return f"{self.links(topic)}{number:020d}"

    def manifest(self, topic: TopicName) -> str:
        return f"{self.topic(topic)}/objects/cur"

    def upload_session(self, topic: TopicName) -> str:
        return f"{self.topic(topic)}/upload/session"

    def trash(self, topic: TopicName) -> str:
        """Prefix of the objects to be deleted later."""
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

    def all_returned(self) -> str:
        """Prefix of the proposals of returning brokers for the gaps of all topics."""
        return f"{self._prefix}/returned/"

    def returned(self, topic: TopicName) -> str:
        """Prefix of the proposals of returning brokers for the gaps of one topic."""
        place = f"{topic.tenant}/{topic.namespace}/{encode_name(topic.topic)}"
        return f"{self.all_returned()}{place}/"

    def returned_log(self, topic: TopicName, lineage: str) -> str:
        """Prefix of the proposed objects of one WAL."""
        return f"{self.returned(topic)}{lineage}/"

    def returned_object(self, topic: TopicName, lineage: str, number: int) -> str:
        return f"{self.returned_log(topic, lineage)}{number:010d}"

    def returned_complete(self, topic: TopicName, lineage: str) -> str:
        return f"{self.returned_log(topic, lineage)}complete"

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
        """Prefix of the records of a topic's subscriptions."""
        place = f"{topic.tenant}/{topic.namespace}/{encode_name(topic.topic)}"
        return f"{self._prefix}/subscriptions/{place}/"

    def consumer(self, topic: TopicName, subscription: str) -> str:
        """The record of a NATS consumer."""
        return f"{self.subscriptions(topic)}{encode_name(subscription)}/consumer"

    def progress(self, topic: TopicName, subscription: str) -> str:
        return f"{self.subscriptions(topic)}{encode_name(subscription)}/progress"

    def job_floors(self, topic: TopicName) -> str:
        return f"{self.subscriptions(topic)}jobs"


class ChannelKeys:
    """Makes the keys of producers, channels, their consumers and scheduled messages."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def channels(self) -> str:
        """Prefix of all records of channels."""
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
