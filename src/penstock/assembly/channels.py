"""Channels from a configuration."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.config import Address, Config
from penstock.delivery.channels import seed as jobs_seed
from penstock.delivery.channels.addresses import Addresses
from penstock.delivery.channels.service import ChannelService
from penstock.delivery.channels.settings import ChannelSettings
from penstock.doors.http.channels.gateway import Gateway
from penstock.metadata.channel_store import ChannelStore
from penstock.metadata.job_floors import JobFloors
from penstock.metadata.sealing import Sealing
from penstock.model.errors import ConfigError
from penstock.topics.host import TopicHost
from penstock.topics.pusher import Pusher
from penstock.topics.source import Source
from penstock.topics.topics import Topics


def channel_service(
    config: Config, host: TopicHost, topics: Topics, source: Source, pusher: Pusher
) -> ChannelService:
    """Raises ConfigError."""
    store = ChannelStore(host.metadata, host.keys, Sealing(config.channels.sealing_key))
    seed = jobs_seed.parse(config.channels.seed)
    floors = JobFloors(host.metadata, host.keys, host.ownership.guard)
    return ChannelService(store, topics, source, pusher, channel_settings(config), floors, seed)


def channel_settings(config: Config) -> ChannelSettings:
    """Raises ConfigError."""
    push, schedule = config.channels.push, config.channels.schedule
    try:
        Addresses(push.allow_networks)
    except ValueError as error:
        raise ConfigError(f"channels.push.allow_networks: {error}") from None
    return ChannelSettings(
        workers=push.workers,
        concurrency=push.concurrency,
        timeout_seconds=push.timeout_ms / 1000,
        retries_max=push.max_retries,
        backoff_seconds=_backoff(push.backoff_seconds),
        rational_delay_seconds=config.channels.rational_delay_ms / 1000,
        token_header=push.token_header,
        user_agent=push.user_agent,
        allowed_networks=push.allow_networks,
        loopback=all(_is_loopback(door.host) for door in _doors(config)),
        disable_after_seconds=push.disable_after_seconds,
        secret_overlap_seconds=push.secret_overlap_seconds,
        schedule_delay_seconds_min=schedule.min_delay_seconds,
        scheduled_bytes_max=schedule.max_bytes,
    )


def gateway(config: Config) -> Gateway | None:
    """What checks signed requests, where they are; raises ConfigError."""
    given = config.channels.gateway
    if not given.secrets:
        return None
    try:
        return Gateway(given.secrets, given.tolerance_seconds, given.exempt_paths)
    except ValueError as error:
        raise ConfigError(f"channels.gateway.secrets: {error}") from None


def _backoff(given: tuple[str, ...]) -> tuple[float, ...]:
    try:
        delays = tuple(float(text) for text in given)
    except ValueError:
        delays = ()
    if not delays or not all(0 <= delay < 1e9 for delay in delays):
        told = ",".join(given)
        raise ConfigError(
            f"channels.push.backoff_seconds is {told!r} but must be a list of seconds"
        )
    return delays


def _doors(config: Config) -> list[Address]:
    return [config.http.listen, config.grpc.listen, config.nats.listen]


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches the broker; then callbacks may be on it, too."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@asynccontextmanager
async def serving(
    config: Config, host: TopicHost, topics: Topics, source: Source, pusher: Pusher
) -> AsyncIterator[ChannelService]:
    """Channels at work; in the end calls in hand may finish."""
    service = channel_service(config, host, topics, source, pusher)
    try:
        await service.open()
        yield service
    finally:
        await service.close(config.shutdown.drain_seconds)
