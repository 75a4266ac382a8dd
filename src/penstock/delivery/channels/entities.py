"""Producers, channels and consumers: made, changed, removed.

A write tells the revision that the caller has seen; False comes back when somebody else was first.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from penstock.delivery.channels import signing
from penstock.delivery.channels.channels import Channels, topic_name
from penstock.host.entropy import random_token, unique_name
from penstock.ledger.job_ids import CONSUMERS_MAX
from penstock.metadata import Revision
from penstock.metadata.channel_records import Channel, Consumer, Kept, Producer
from penstock.model.errors import ResourceInUse
from penstock.model.units import ONLY_PARTITION

TOKEN_CHARACTERS: Final = 12
CONFLICT_SECONDS: Final = 0.01
SECRETS_MAX: Final = 3
"""With which deliveries are signed at the same time while secrets are replaced."""


class Entities:
    """Writes records."""

    def __init__(self, channels: Channels) -> None:
        self._channels, self._store, self._clock = channels, channels.store, channels.clock

    async def put_producer(self, id_: str, name: str, token: str, seen: Revision) -> bool:
        old, now = self._store.producers.get(id_), self._clock.now_us()
        created = now if old is None else old.created_us
        producer = Producer(id_, name or id_, token or random_token(TOKEN_CHARACTERS), created, now)
        return await self._store.put(Kept(producer, seen))

    async def put_channel(self, id_: str, name: str, token: str, seen: Revision) -> bool:
        """Raises NameInvalid, and what making its topic raises."""
        topic_name(id_)
        old, now = self._store.channels.get(id_), self._clock.now_us()
        token = token or random_token(TOKEN_CHARACTERS)
        if old is None:
            channel = Channel(id_, name or id_, token, unique_name(), 0, now, now)
            await self._channels.topic(id_)
        else:
            channel = msgspec.structs.replace(old, name=name or id_, token=token, updated_us=now)
        written = await self._store.put(Kept(channel, seen))
        if written:
            await self._channels.find(channel)
        return written

    async def put_consumer(self, channel: Channel, asked: Consumer, seen: Revision) -> bool:
        """Write what `asked` says of name, token, callback and type; the rest is ours.

        Raises ResourceInUse for a new consumer when the channel has had CONSUMERS_MAX of them.
        """
        old, now = self._store.consumers(channel.id).get(asked.id), self._clock.now_us()
        asked = msgspec.structs.replace(
            asked,
            name=asked.name or asked.id,
            token=asked.token or random_token(TOKEN_CHARACTERS),
            updated_us=now,
        )
        if old is not None:
            kept = {name: getattr(old, name) for name in _OURS}
            return await self._store.put(Kept(msgspec.structs.replace(asked, **kept), seen))
        return await self._add_consumer(asked, seen)

    async def _add_consumer(self, asked: Consumer, seen: Revision) -> bool:
        """A new one; it counts in its channel, where others may come at the same time."""
        shelf = self._store.consumers(asked.channel)
        while (channel := self._store.channels.get(asked.channel)) is not None:
            revision = self._store.channels.revision(channel.id)
            opened = (await self._channels.find(channel)).jobs.opened
            number = channel.consumers + 1
            if number > CONSUMERS_MAX:
                limit = f"has had {CONSUMERS_MAX} consumers, the limit CONSUMERS_MAX"
                raise ResourceInUse("channel", channel.id, f"{limit}; create another channel")
            new = msgspec.structs.replace(
                asked,
                number=number,
                topic=opened.topic.unique,
                start=opened.partition(ONLY_PARTITION).next_offset,
                secrets=[signing.new_secret()],
                created_us=asked.updated_us,
            )
            counted = msgspec.structs.replace(channel, consumers=number)
            if await self._store.put(Kept(new, seen), Kept(counted, revision)):
                return True
            if shelf.get(asked.id) is not None:
                break
            await asyncio.sleep(CONFLICT_SECONDS)
        return False

    async def delete_consumer(self, consumer: Consumer, seen: Revision) -> bool:
        """Its jobs go with it."""
        return await self._store.delete(consumer, seen)

    async def rotate_secret(self, consumer: Consumer, secret: str = "") -> Consumer | None:
        """Sign with a new secret, and for a while with the old one too; None at a conflict.

        Raises ValueError when the secret is none.
        """
        signing.key_of(secret)
        secrets = [secret or signing.new_secret(), *consumer.secrets][:SECRETS_MAX]
        now = self._clock.now_us()
        changed = msgspec.structs.replace(consumer, secrets=secrets, rotated_us=now)
        return changed if await self._change(changed) else None

    async def forget_old_secrets(self, consumer: Consumer) -> None:
        """Sign with the newest secret alone once the others have had their time."""
        overlap = self._channels.settings.secret_overlap_seconds * 1_000_000
        if len(consumer.secrets) > 1 and self._clock.now_us() >= consumer.rotated_us + overlap:
            await self._change(msgspec.structs.replace(consumer, secrets=consumer.secrets[:1]))

    async def limit(self, consumer: Consumer, rate: int, concurrency: int) -> bool:
        changed = msgspec.structs.replace(consumer, rate_per_second=rate, concurrency=concurrency)
        return await self._change(changed)

    async def _change(self, changed: Consumer) -> bool:
        shelf = self._store.consumers(changed.channel)
        return await self._store.put(Kept(changed, shelf.revision(changed.id)))


_OURS: Final = (
    "number",
    "topic",
    "start",
    "secrets",
    "created_us",
    "rotated_us",
    "disabled",
    "rate_per_second",
    "concurrency",
)
