"""Producers, channels and endpoints that the configuration contains.

The broker writes them when the seed is new or has changed since the last start, and then overwrites
what requests have changed. An entry that cannot be written is skipped and logged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import structlog
import yaml

from penstock.delivery.channels.entities import PULL, PUSH
from penstock.delivery.channels.records import ChannelRecords, EndpointSpec
from penstock.delivery.channels.store import ChannelStore
from penstock.model.errors import ConfigError, PenstockError

_events = structlog.get_logger(__name__)


class SeedEndpoint(NamedTuple):
    """A valid endpoint of a seed."""

    channel: str
    id: str
    name: str
    token: str
    callback_url: str
    type: str


class Seed(NamedTuple):
    """The content of a seed; producers and channels by id have a name and a token."""

    producers: dict[str, tuple[str, str]]
    channels: dict[str, tuple[str, str]]
    endpoints: list[SeedEndpoint]
    digest: bytes


def parse_seed(text: str) -> Seed | None:
    """The seed in a YAML text, None for an empty text; raises ConfigError."""
    if not text.strip():
        return None
    try:
        # BaseLoader leaves ids and tokens that look like numbers or dates as text.
        document = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes texts only
    except yaml.YAMLError as error:
        raise ConfigError(f"channels.seed is not YAML: {type(error).__name__}") from None
    if not isinstance(document, dict) or set(document) - {"producers", "channels", "consumers"}:
        raise ConfigError("channels.seed must hold producers, channels and consumers by their ids")
    producers, channels = (_names(document.get(key) or {}) for key in ("producers", "channels"))
    endpoints = [
        endpoint
        for channel, endpoints_by_id in (document.get("consumers") or {}).items()
        for id_, fields in (endpoints_by_id or {}).items()
        if (endpoint := _endpoint(str(channel), str(id_), fields or {}, channels)) is not None
    ]
    digest = hashlib.sha256(msgspec.json.encode([producers, channels, endpoints])).digest()
    return Seed(producers, channels, endpoints, digest)


async def write_seed(seed: Seed, store: ChannelStore, records: ChannelRecords) -> None:
    """Write a seed unless it is the one that was written last."""
    if await store.seed_digest() == seed.digest:
        return
    for id_, names in seed.producers.items():
        await records.put_producer(id_, *names, store.producers.find(id_))
    for id_, names in seed.channels.items():
        try:
            await records.put_channel(id_, *names, store.channels.find(id_))
        except PenstockError as error:
            _events.warning("seed_skipped", channel=id_, reason=str(error))
    for endpoint in seed.endpoints:
        channel = store.channels.get(endpoint.channel)
        if channel is None:
            _events.warning("seed_skipped", consumer=endpoint.id, reason="its channel is missing")
            continue
        seen = store.endpoints(channel.id).find(endpoint.id)
        await records.put_endpoint(channel, endpoint.id, EndpointSpec(*endpoint[2:]), seen)
    await store.put_seed_digest(seed.digest)


def is_absolute(url: str) -> bool:
    """Whether this is an http(s) URL with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _names(entries: Any) -> dict[str, tuple[str, str]]:
    if not isinstance(entries, Mapping):
        raise ConfigError("channels.seed must hold producers, channels and consumers by their ids")
    return {
        str(id_): (str((fields or {}).get("name", "")), str((fields or {}).get("token", "")))
        for id_, fields in entries.items()
    }


def _endpoint(
    channel: str, id_: str, fields: Mapping[str, Any], channels: Mapping[str, object]
) -> SeedEndpoint | None:
    """A valid endpoint; logs why it skips an invalid one."""
    kind = str(fields.get("type") or PUSH)
    url = str(fields.get("callback_url") or "")
    reason = ""
    if kind not in (PUSH, PULL):
        reason = f"type {kind!r} is neither push nor pull"
    elif channel not in channels:
        reason = f"channel {channel!r} is not among the channels of the seed"
    elif not is_absolute(url):
        reason = "callback_url is not absolute"
    if reason:
        _events.warning("seed_skipped", channel=channel, consumer=id_, reason=reason)
        return None
    name, token = str(fields.get("name", "")), str(fields.get("token", ""))
    return SeedEndpoint(channel, id_, name, token, url, kind)
