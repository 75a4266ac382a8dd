"""What may be done with the jobs of one consumer: the verbs of the channel API.

Each verb returns when its changes are durable.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from pyroaring import BitMap64

from penstock.delivery.channels.channels import Channels, OpenChannel
from penstock.delivery.channels.messages import JobMessage
from penstock.ledger.job_records import Change
from penstock.ledger.job_states import Claimed, Refusal
from penstock.ledger.jobs import JobLedger
from penstock.metadata.channel_records import Channel, Consumer
from penstock.model.errors import DataDamaged, PenstockError
from penstock.model.units import Microseconds

_events = structlog.get_logger(__name__)


class JobChangeRefused(PenstockError):
    """A job cannot change as requested; nothing was changed."""

    code = "job_change_refused"


class JobLeaseEnded(JobChangeRefused):
    """The lease in the request is not the current lease of the job; nothing was changed."""

    code = "job_lease_ended"


class JobsNotReady(PenstockError):
    """The ledger of a consumer is not open yet; retry later."""

    code = "jobs_not_ready"

    def __init__(self) -> None:
        super().__init__("the consumer's jobs are not ready yet; retry later")


@dataclass(frozen=True, slots=True)
class ConsumerJobs:
    """The jobs of one consumer, for the duration of a request."""

    channels: Channels
    channel: Channel
    consumer: Consumer
    open: OpenChannel
    ledger: JobLedger

    async def message(self, offset: int) -> JobMessage | None:
        """The message of a job; drops the job if the message is deleted or damaged."""
        try:
            message = await self.open.jobs.message(offset)
        except DataDamaged as error:
            _events.error("message_damaged", channel=self.channel.id, reason=str(error))
            message = None
        if message is None:
            self.ledger.drop(offset)
        return message

    async def change_state(
        self, offset: int, state: str, timeout_seconds: int, lease: int | None
    ) -> int | None:
        """Change the state of a job; returns its lease if it changed and has one.

        Raises JobChangeRefused, JobLeaseEnded.
        """
        jobs = self.open.jobs
        change = self.ledger.ask(offset, state, timeout_seconds, lease, jobs.now_us())
        if change is None:
            await jobs.durable()
            return None
        await jobs.keep(_accepted(change))
        return self.ledger.lease(offset) or None

    async def claim(self, limit: int, timeout_seconds: int) -> list[Claimed]:
        """Put the first queued jobs in flight, each with a new lease."""
        jobs = self.open.jobs
        claimed, changes = self.ledger.claim(limit, timeout_seconds, jobs.now_us())
        if changes:
            await jobs.keep(*changes)
        return claimed

    async def extend(self, offset: int, lease: int, timeout_seconds: int) -> None:
        """Restart the timeout of a job in flight; raises JobLeaseEnded."""
        jobs = self.open.jobs
        change = self.ledger.extend(offset, lease, timeout_seconds, jobs.now_us())
        await jobs.keep(_accepted(change))

    async def requeue(self, offset: int | None = None) -> bool:
        """Queue one dead job again, or all; returns whether there was any."""
        jobs = self.open.jobs
        change = self.ledger.requeue(_chosen(offset), jobs.now_us())
        if change is None:
            return False
        await jobs.keep(change)
        self.wake()
        return True

    async def purge(self, offset: int | None = None) -> int:
        """Remove one dead job without retries left, or all; returns how many."""
        jobs = self.open.jobs
        change = self.ledger.purge(_chosen(offset), jobs.now_us())
        if change is None:
            return 0
        await jobs.keep(change)
        return change.jobs

    async def replay(self, first: int, stop: int) -> int:
        """Queue the jobs of these messages again, whatever their state; returns how many."""
        jobs = self.open.jobs
        first = max(first, jobs.partition.start_offset)
        entries = self.ledger.replay(first, stop, jobs.now_us())
        if entries:
            await jobs.keep(*entries)
            self.wake()
        return sum(getattr(entry, "jobs", 0) for entry in entries)

    async def offset_at(self, time_us: int) -> int:
        """The offset of the first message that is not older than a time."""
        return await self.open.jobs.partition.offset_at(Microseconds(time_us))

    def wake(self) -> None:
        """Let the push workers look at the consumer's jobs."""
        target = self.channels.target(self.consumer)
        if target is not None:
            self.channels.workers.wake(target)


def _chosen(offset: int | None) -> BitMap64 | None:
    return None if offset is None else BitMap64([offset])


def _accepted(change: Change | Refusal) -> Change:
    if isinstance(change, Refusal):
        raise (JobLeaseEnded if change is Refusal.LEASE else JobChangeRefused)(change.value)
    return change
