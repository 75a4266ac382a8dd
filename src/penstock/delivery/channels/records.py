"""Creates, changes and deletes producers, channels and endpoints.

A write names the entity that its caller has seen, None for a new one. It returns None or False, and
changes nothing, if the entity has changed since.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.delivery.channels.entities import (
    Channel,
    Endpoint,
    Entity,
    Producer,
    Versioned,
)
from penstock.delivery.channels.open_channels import (
    CONFLICT_SECONDS,
    CONFLICT_SECONDS_MAX,
    OpenChannels,
    topic_name,
)
from penstock.delivery.channels.store import EntityTable
from penstock.delivery.channels.webhook import new_secret, signing_key
from penstock.host.entropy import random_token, unique_name
from penstock.host.tasks import Backoff
from penstock.ledger.job_ids import ENDPOINTS_MAX
from penstock.metadata import Revision
from penstock.model.errors import ResourceInUse
from penstock.model.units import ONLY_PARTITION

TOKEN_CHARACTERS: Final = 12
SECRETS_MAX: Final = 3
"""Limit of the secrets that sign deliveries at the same time."""


class EndpointSpec(NamedTuple):
    """The fields of an endpoint that clients and the seed may set; empty ones have defaults."""

    name: str
    token: str
    callback_url: str
    type: str


class ChannelRecords:
    """Reads and writes the entities of the channel API."""

    def __init__(self, channels: OpenChannels) -> None:
        self._channels, self._store, self._clock = channels, channels.store, channels.clock

    @property
    def producers(self) -> EntityTable[Producer]:
        return self._store.producers

    @property
    def channels(self) -> EntityTable[Channel]:
        return self._store.channels

    def endpoints(self, channel_id: str) -> EntityTable[Endpoint]:
        return self._store.endpoints(channel_id)

    async def put_producer(
        self, id_: str, name: str, token: str, seen: Versioned[Producer] | None
    ) -> Versioned[Producer] | None:
        old, now = self._store.producers.get(id_), self._clock.now_us()
        created = now if old is None else old.created_us
        producer = Producer(id_, name or id_, token or random_token(TOKEN_CHARACTERS), created, now)
        written = await self._store.put(Versioned(producer, _revision(seen)))
        return self._store.producers.find(id_) if written else None

    async def put_channel(
        self, id_: str, name: str, token: str, seen: Versioned[Channel] | None
    ) -> Versioned[Channel] | None:
        """Write a channel and create its topic; raises NameInvalid, and what that raises."""
        topic_name(id_)
        old, now = self._store.channels.get(id_), self._clock.now_us()
        token = token or random_token(TOKEN_CHARACTERS)
        if old is None:
            channel = Channel(id_, name or id_, token, unique_name(), 0, now, now)
            await self._channels.topic(id_)
        else:
            channel = msgspec.structs.replace(old, name=name or id_, token=token, updated_us=now)
        if not await self._store.put(Versioned(channel, _revision(seen))):
            return None
        await self._channels.find(channel)
        return self._store.channels.find(id_)

    async def put_endpoint(
        self, channel: Channel, id_: str, spec: EndpointSpec, seen: Versioned[Endpoint] | None
    ) -> Versioned[Endpoint] | None:
        """Write an endpoint.

        Raises ResourceInUse if the channel has created ENDPOINTS_MAX endpoints and this is a new
        one.
        """
        table = self._store.endpoints(channel.id)
        old, now = table.get(id_), self._clock.now_us()
        name, token = spec.name or id_, spec.token or random_token(TOKEN_CHARACTERS)
        spec = spec._replace(name=name, token=token)
        if old is None:
            written = await self._add_endpoint(channel.id, id_, spec, now, _revision(seen))
        else:
            changed = msgspec.structs.replace(old, **spec._asdict(), updated_us=now)
            written = await self._store.put(Versioned(changed, _revision(seen)))
        return table.find(id_) if written else None

    async def _add_endpoint(
        self, channel_id: str, id_: str, spec: EndpointSpec, now: int, seen: Revision
    ) -> bool:
        """Create an endpoint; its number counts in the channel, which others may change too."""
        backoff = Backoff(CONFLICT_SECONDS, CONFLICT_SECONDS_MAX)
        while (found := self._store.channels.find(channel_id)) is not None:
            channel, revision = found
            opened = (await self._channels.find(channel)).jobs.opened
            number = channel.endpoints_created + 1
            if number > ENDPOINTS_MAX:
                limit = f"has had {ENDPOINTS_MAX} consumers, the limit ENDPOINTS_MAX"
                raise ResourceInUse("channel", channel_id, f"{limit}; create another channel")
            endpoint = Endpoint(
                channel_id,
                id_,
                *spec,
                number=number,
                topic_uid=opened.topic.unique,
                start_offset=opened.partition(ONLY_PARTITION).next_offset,
                secrets=[new_secret()],
                created_us=now,
                updated_us=now,
            )
            counted = msgspec.structs.replace(channel, endpoints_created=number)
            if await self._store.put(Versioned(endpoint, seen), Versioned(counted, revision)):
                return True
            if self._store.endpoints(channel_id).get(id_) is not None:
                break
            await backoff.pause()
        return False

    async def delete_endpoint(self, seen: Versioned[Endpoint]) -> bool:
        """Delete an endpoint and its jobs."""
        return await self._store.delete(*seen)

    # -- secrets, limits, enabling

    async def rotate_secret(self, endpoint: Endpoint, secret: str = "") -> Endpoint | None:
        """Sign with a new secret, and for the overlap time with the previous ones too.

        Raises ValueError if the secret is malformed.
        """
        signing_key(secret)
        secrets = [secret or new_secret(), *endpoint.secrets][:SECRETS_MAX]
        now = self._clock.now_us()
        return await self._change(
            msgspec.structs.replace(endpoint, secrets=secrets, rotated_us=now)
        )

    async def current_secrets(self, endpoint: Endpoint) -> list[str]:
        """The signing secrets; deletes the previous ones after the overlap time."""
        overlap = self._channels.settings.secret_overlap_seconds * 1_000_000
        if len(endpoint.secrets) > 1 and self._clock.now_us() >= endpoint.rotated_us + overlap:
            await self._change(msgspec.structs.replace(endpoint, secrets=endpoint.secrets[:1]))
        return (self.endpoints(endpoint.channel).get(endpoint.id) or endpoint).secrets

    async def limit(self, endpoint: Endpoint, rate: int, concurrency: int) -> Endpoint | None:
        """Limit the deliveries to an endpoint; 0 stands for the default."""
        return await self._change(
            msgspec.structs.replace(endpoint, rate_per_second=rate, concurrency=concurrency)
        )

    async def disable(self, endpoint: Endpoint, reason: str) -> None:
        """Stop pushing to an endpoint; its jobs stay queued."""
        await self._channels.set_disabled(endpoint, reason)

    async def enable(self, endpoint: Endpoint) -> None:
        """Push to an endpoint again."""
        await self._channels.set_disabled(endpoint, "")
        target = self._channels.target(endpoint)
        if target is not None:
            self._channels.workers.wake(target)

    async def _change(self, changed: Endpoint) -> Endpoint | None:
        table = self._store.endpoints(changed.channel)
        written = await self._store.put(Versioned(changed, table.revision(changed.id)))
        return table.get(changed.id) if written else None


def _revision(seen: Versioned[Entity] | None) -> Revision:
    return Revision(0) if seen is None else seen.revision
