"""Everything about channels that a broker runs, and the order of up and down."""

from __future__ import annotations

from penstock.delivery.channels import seed as jobs_seed
from penstock.delivery.channels.broadcast import Broadcasts
from penstock.delivery.channels.channels import Channels
from penstock.delivery.channels.consumer_jobs import ConsumerJobs, JobsNotReady
from penstock.delivery.channels.entities import Entities
from penstock.delivery.channels.scheduled import Schedules
from penstock.delivery.channels.seed import Seed
from penstock.delivery.channels.settings import ChannelSettings
from penstock.ledger.job_states import JobState
from penstock.metadata.channel_records import Channel, Consumer
from penstock.metadata.channel_store import ChannelStore
from penstock.metadata.job_floors import JobFloors
from penstock.model.metrics import Metric, single
from penstock.topics import Pusher, Source, Topics


class ChannelService:
    """The parts that protocols talk to."""

    def __init__(
        self,
        store: ChannelStore,
        topics: Topics,
        source: Source,
        pusher: Pusher,
        settings: ChannelSettings,
        floors: JobFloors,
        seed: Seed | None,
    ) -> None:
        self.store, self.seed, self.settings = store, seed, settings
        self.channels = Channels(store, topics, source, settings, floors)
        self.entities = Entities(self.channels)
        self.broadcasts = Broadcasts(self.channels, pusher)
        self.schedules = Schedules(self.channels, self.broadcasts)

    async def jobs(self, channel: Channel, consumer: Consumer) -> ConsumerJobs:
        """The jobs of a consumer for all messages that are durable now.

        Raises JobsNotReady, and what opening the channel's topic raises.
        """
        open_channel = await self.channels.find(channel)
        await open_channel.jobs.catch_up()
        ledger = open_channel.jobs.ledgers.get(consumer.number)
        if ledger is None:
            raise JobsNotReady
        ledger.tick(open_channel.jobs.now_us())
        return ConsumerJobs(self.channels, channel, consumer, open_channel, ledger)

    async def open(self) -> None:
        await self.store.open()
        await self.channels.open()
        if self.seed is not None:
            await jobs_seed.sow(self.seed, self.channels)

    async def close(self, seconds: float) -> None:
        """Calls in hand may end within these seconds."""
        await self.schedules.close()
        await self.channels.close(seconds)
        await self.store.close()

    def figures(self) -> list[Metric]:
        """Jobs by channel, consumer and state; deliveries since the start."""
        queued: list[tuple[dict[str, str], float]] = []
        dead: list[tuple[dict[str, str], float]] = []
        for id_, channel in self.channels:
            for target in channel.targets.values():
                if (ledger := target.ledger) is not None:
                    numbers = ledger.numbers()
                    labels = {"channel": id_, "consumer": target.consumer.id}
                    queued.append((labels, numbers[JobState.QUEUED]))
                    dead.append((labels, numbers[JobState.DEAD]))
        workers = self.channels.workers
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
