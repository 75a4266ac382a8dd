"""Channels, producers and consumers that the configuration brings.

They are written when the seed is new or has changed since the last start, and then over whatever
requests made of them; as long as it stays the same, nothing is touched. An entry that cannot be is
left out, and that is told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import structlog
import yaml

from penstock.delivery.channels.channels import Channels
from penstock.delivery.channels.entities import Entities
from penstock.metadata.channel_records import PULL, PUSH, Consumer
from penstock.model.errors import ConfigError, PenstockError

_events = structlog.get_logger(__name__)


class SeedConsumer(NamedTuple):
    """A consumer as the seed has it, checked."""

    channel: str
    id: str
    name: str
    token: str
    callback_url: str
    type: str


class Seed(NamedTuple):
    """What the configuration brings; producers and channels by id: name and token."""

    producers: dict[str, tuple[str, str]]
    channels: dict[str, tuple[str, str]]
    consumers: list[SeedConsumer]
    digest: bytes


def parse(text: str) -> Seed | None:
    """The seed of a YAML text, None for an empty one; raises ConfigError when it is none."""
    if not text.strip():
        return None
    try:
        # Every id and token is text, whatever else it could be read as.
        given = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes texts only
    except yaml.YAMLError as error:
        raise ConfigError(f"channels.seed is not YAML: {type(error).__name__}") from None
    if not isinstance(given, dict) or set(given) - {"producers", "channels", "consumers"}:
        raise ConfigError("channels.seed must hold producers, channels and consumers by their ids")
    producers, channels = (_named(given.get(key) or {}) for key in ("producers", "channels"))
    consumers = [
        consumer
        for channel, some in (given.get("consumers") or {}).items()
        for id_, facts in (some or {}).items()
        if (consumer := _consumer(str(channel), str(id_), facts or {}, channels)) is not None
    ]
    digest = hashlib.sha256(msgspec.json.encode([producers, channels, consumers])).digest()
    return Seed(producers, channels, consumers, digest)


async def sow(seed: Seed, channels: Channels) -> None:
    """Write the seed if it is not the one that was written last."""
    store, entities = channels.store, Entities(channels)
    if await store.seeded() == seed.digest:
        return
    for id_, facts in seed.producers.items():
        await entities.put_producer(id_, *facts, store.producers.revision(id_))
    for id_, facts in seed.channels.items():
        try:
            await entities.put_channel(id_, *facts, store.channels.revision(id_))
        except PenstockError as error:
            _events.warning("seed_skipped", channel=id_, reason=str(error))
    for given in seed.consumers:
        channel = store.channels.get(given.channel)
        if channel is None:
            _events.warning("seed_skipped", consumer=given.id, reason="its channel is not there")
            continue
        consumer = blank(given)
        revision = store.consumers(channel.id).revision(given.id)
        await entities.put_consumer(channel, consumer, revision)
    await store.put_seeded(seed.digest)


def blank(given: SeedConsumer) -> Consumer:
    """A consumer of which only what was given is known."""
    named = given.id, given.name, given.token, given.callback_url, given.type
    return Consumer(given.channel, *named, 0, "", 0, [], 0, 0)


def absolute(url: str) -> bool:
    """Whether this is an http(s) address with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _named(given: Any) -> dict[str, tuple[str, str]]:
    if not isinstance(given, Mapping):
        raise ConfigError("channels.seed must hold producers, channels and consumers by their ids")
    return {
        str(id_): (str((facts or {}).get("name", "")), str((facts or {}).get("token", "")))
        for id_, facts in given.items()
    }


def _consumer(
    channel: str, id_: str, facts: Mapping[str, Any], channels: Mapping[str, object]
) -> SeedConsumer | None:
    kind = str(facts.get("type") or PUSH)
    url = str(facts.get("callback_url") or "")
    reason = ""
    if kind not in (PUSH, PULL):
        reason = f"type {kind!r} is neither push nor pull"
    elif channel not in channels:
        reason = f"channel {channel!r} is not among the channels of the seed"
    elif not absolute(url):
        reason = "callback_url is not absolute"
    if reason:
        _events.warning("seed_skipped", channel=channel, consumer=id_, reason=reason)
        return None
    name, token = str(facts.get("name", "")), str(facts.get("token", ""))
    return SeedConsumer(channel, id_, name, token, url, kind)
