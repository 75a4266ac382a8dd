"""Builds the channel service and its gateway from the configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from penstock.config import Address, Config, is_loopback
from penstock.delivery.channels import (
    Addresses,
    ChannelService,
    ChannelSettings,
    ChannelStore,
    JobFloors,
    Sealing,
    parse_seed,
)
from penstock.model.errors import ConfigError
from penstock.protocols.http import Bodies
from penstock.protocols.http.channels import Gateway
from penstock.topics import TopicHost, Topics


@asynccontextmanager
async def channel_service(
    config: Config, host: TopicHost, topics: Topics
) -> AsyncIterator[ChannelService]:
    """Run the channel service within the block; at its end running callbacks may finish."""
    store = ChannelStore(host.metadata, host.keys, Sealing(config.channels.sealing_key))
    floors = JobFloors(host.metadata, host.keys, host.ownership.guard)
    seed = parse_seed(config.channels.seed)
    service = ChannelService(store, topics, channel_settings(config), floors, seed)
    try:
        await service.open()
        yield service
    finally:
        await service.close(config.shutdown.drain_seconds)


def channel_settings(config: Config) -> ChannelSettings:
    """The settings of the channel service; raises ConfigError."""
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
        backoff_seconds=_backoff_delays(push.backoff_seconds),
        rational_delay_seconds=config.channels.rational_delay_ms / 1000,
        token_header=push.token_header,
        user_agent=push.user_agent,
        allowed_networks=push.allow_networks,
        # Callbacks to this machine are allowed while no other machine can reach the broker.
        loopback=all(is_loopback(address.host) for address in _listen_addresses(config)),
        disable_after_seconds=push.disable_after_seconds,
        secret_overlap_seconds=push.secret_overlap_seconds,
        schedule_delay_seconds_min=schedule.min_delay_seconds,
        scheduled_bytes_max=schedule.max_bytes,
        signed_only=bool(config.channels.gateway.secrets),
    )


def channel_gateway(config: Config, bodies: Bodies) -> Gateway | None:
    """The gateway that verifies signatures; None if none are required. Raises ConfigError."""
    settings = config.channels.gateway
    if not settings.secrets:
        return None
    try:
        return Gateway(settings.secrets, bodies, settings.tolerance_seconds, settings.exempt_paths)
    except ValueError as error:
        raise ConfigError(f"channels.gateway.secrets: {error}") from None


def _backoff_delays(texts: tuple[str, ...]) -> tuple[float, ...]:
    try:
        delays = tuple(float(text) for text in texts)
    except ValueError:
        delays = ()
    if not delays or not all(0 <= delay < 1e9 for delay in delays):
        value = ",".join(texts)
        raise ConfigError(
            f"channels.push.backoff_seconds is {value!r} but must be a list of seconds"
        )
    return delays


def _listen_addresses(config: Config) -> Sequence[Address]:
    return config.http.listen + config.grpc.listen + config.nats.listen
