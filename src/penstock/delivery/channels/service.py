"""The service behind the channel API: everything about channels that a broker runs.

Protocols call `records` (producers, channels, endpoints), `broadcasts` (messages), `scheduled`
(messages for later), `jobs()` (the jobs of one endpoint) and the status methods, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.delivery.channels.broadcasts import Broadcasts
from penstock.delivery.channels.endpoint_jobs import EndpointJobs, JobsNotReady
from penstock.delivery.channels.entities import Channel, Endpoint
from penstock.delivery.channels.jobs import ChannelJobs
from penstock.delivery.channels.open_channels import OpenChannel, OpenChannels
from penstock.delivery.channels.records import ChannelRecords
from penstock.delivery.channels.scheduled import ScheduledMessages
from penstock.delivery.channels.seed import Seed, write_seed
from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.store import ChannelStore, JobFloors
from penstock.host.clock import Clock
from penstock.ledger.job_states import JobState
from penstock.ledger.jobs import JobLedger
from penstock.model.errors import PenstockError
from penstock.model.metrics import Metric, single
from penstock.topics import Topics


class StateCount(NamedTuple):
    """How many jobs of an endpoint are in a state, and the times of their messages."""

    state: JobState
    jobs: int
    oldest_us: int | None
    newest_us: int | None
    """None if the message is deleted or cannot be read."""


class DeadCount(NamedTuple):
    """How many dead jobs an endpoint has."""

    channel: Channel
    endpoint: Endpoint
    jobs: int


class ChannelService:
    """Opens and closes the parts of the service in order."""

    def __init__(
        self,
        store: ChannelStore,
        topics: Topics,
        settings: ChannelSettings,
        floors: JobFloors,
        seed: Seed | None,
        clock: Clock | None = None,
    ) -> None:
        self.seed, self.settings, self.clock = seed, settings, clock or Clock()
        self._store = store
        self._channels = OpenChannels(store, topics, settings, floors, self.clock)
        self.records = ChannelRecords(self._channels)
        self.broadcasts = Broadcasts(self._channels)
        self.scheduled = ScheduledMessages(self._channels, self.broadcasts)

    async def open(self) -> None:
        await self._store.open()
        await self._channels.open()
        if self.seed is not None:
            await write_seed(self.seed, self._store, self.records)

    async def close(self, seconds: float) -> None:
        """Close; running calls of callbacks may end within `seconds`."""
        await self.scheduled.close()
        await self._channels.close(seconds)
        await self._store.close()

    async def jobs(self, channel: Channel, endpoint: Endpoint) -> EndpointJobs:
        """The jobs of an endpoint for all messages that are durable now.

        Raises JobsNotReady, and what opening the channel's topic raises.
        """
        open_channel = await self._channels.find(channel)
        await open_channel.jobs.catch_up()
        ledger = open_channel.jobs.ledgers.get(endpoint.number)
        if ledger is None:
            raise JobsNotReady
        ledger.tick(open_channel.jobs.now_us())
        return EndpointJobs(channel, endpoint, open_channel, ledger)

    # -- status

    async def job_counts(self) -> dict[str, dict[str, list[StateCount]]]:
        """Jobs by channel, endpoint and state; states without jobs are left out."""
        counts: dict[str, dict[str, list[StateCount]]] = {}
        for channel in self._channels:
            endpoints = counts[channel.id] = {}
            for endpoint, ledger in _current_ledgers(channel):
                endpoints[endpoint.id] = [
                    await _state_count(channel.jobs, ledger, state, count)
                    for state, count in ledger.counts().items()
                    if count
                ]
        return counts

    def dead_counts(self) -> list[DeadCount]:
        """Dead jobs by endpoint."""
        return [
            DeadCount(entity, endpoint, ledger.counts()[JobState.DEAD])
            for channel in self._channels
            if (entity := self._store.channels.get(channel.id)) is not None
            for endpoint, ledger in _current_ledgers(channel)
        ]

    def metrics(self) -> list[Metric]:
        """Jobs by channel, endpoint and state; deliveries since the start."""
        queued: list[tuple[dict[str, str], float]] = []
        dead: list[tuple[dict[str, str], float]] = []
        for channel in self._channels:
            for target in channel.targets.values():
                if (ledger := target.ledger) is not None:
                    numbers = ledger.counts()
                    labels = {"channel": channel.id, "consumer": target.endpoint.id}
                    queued.append((labels, numbers[JobState.QUEUED]))
                    dead.append((labels, numbers[JobState.DEAD]))
        workers = self._channels.workers
        return [
            Metric("queued_job_count", "gauge", "Jobs that wait for delivery.", list(queued)),
            Metric("dead_job_count", "gauge", "Jobs that were given up.", list(dead)),
            single(
                "penstock_deliveries_total", "counter", "Jobs delivered by push.", workers.delivered
            ),
            single(
                "penstock_delivery_failures_total",
                "counter",
                "Attempts to push that failed.",
                workers.failed,
            ),
            single(
                "penstock_delivery_headers_dropped_total",
                "counter",
                "Message headers that deliveries left out: invalid, reserved or over a limit.",
                workers.headers_dropped,
            ),
            single(
                "penstock_deliveries_running", "gauge", "Calls to callbacks now.", workers.running
            ),
        ]


def _current_ledgers(channel: OpenChannel) -> Iterator[tuple[Endpoint, JobLedger]]:
    """The ledgers of a channel as of now: without jobs of deleted messages, timeouts applied."""
    channel.jobs.drop_deleted()
    for target in list(channel.targets.values()):
        if (ledger := target.ledger) is not None:
            ledger.tick(channel.jobs.now_us())
            yield target.endpoint, ledger


async def _state_count(
    jobs: ChannelJobs, ledger: JobLedger, state: JobState, count: int
) -> StateCount:
    span = ledger.span(state) if state is not JobState.DELIVERED else None
    first, last = span or (ledger.start, ledger.head - 1)
    return StateCount(state, count, await _time_us(jobs, first), await _time_us(jobs, last))


async def _time_us(jobs: ChannelJobs, offset: int) -> int | None:
    try:
        message = await jobs.message(offset)
    except PenstockError:
        return None
    return None if message is None else message.timestamp_us
