"""The jobs of one endpoint: the verbs of clients that pull, and of those that manage jobs.

A verb that changes jobs returns when its changes are durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from pyroaring import BitMap64

from penstock.delivery.channels.entities import Channel, Endpoint
from penstock.delivery.channels.messages import JobMessage
from penstock.delivery.channels.open_channels import OpenChannel
from penstock.delivery.channels.push_targets import Attempt
from penstock.delivery.channels.store import PAGE_SIZE, CursorQuery
from penstock.ledger.job_ids import JobPlace, job_id, job_place, message_offset
from penstock.ledger.job_records import Change
from penstock.ledger.job_states import OFFSET_LIMIT, JobState, Refusal, offset_of
from penstock.ledger.jobs import JobLedger
from penstock.model.errors import DataDamaged, PenstockError
from penstock.model.units import Microseconds

_events = structlog.get_logger(__name__)


class JobChangeRefused(PenstockError):
    """A job cannot change as requested; nothing was changed."""

    code = "job_change_refused"


class JobLeaseEnded(JobChangeRefused):
    """The lease in the request is not the current lease of the job; nothing was changed."""

    code = "job_lease_ended"


class JobUnknown(PenstockError):
    """The endpoint has no such job."""

    code = "job_not_found"

    def __init__(self) -> None:
        super().__init__("job could not be found")


class JobOfAnotherEndpoint(JobUnknown):
    """The job belongs to another endpoint of the channel."""

    code = "job_of_another_consumer"


class JobsNotReady(PenstockError):
    """The ledger of an endpoint is not open yet; retry later."""

    code = "jobs_not_ready"

    def __init__(self) -> None:
        super().__init__("the consumer's jobs are not ready yet; retry later")


class JobDetails(NamedTuple):
    """A job and its message."""

    id: str
    priority: int
    state: JobState
    changed_us: int
    lease: int
    """0 while the job is not in flight."""
    message: JobMessage


@dataclass(frozen=True, slots=True)
class EndpointJobs:
    """The jobs of one endpoint, for the duration of a request."""

    channel: Channel
    endpoint: Endpoint
    _open: OpenChannel
    _ledger: JobLedger

    # -- finding jobs

    def find(self, id_: str) -> int:
        """The offset of the message of a job; raises JobUnknown, JobOfAnotherEndpoint."""
        place = job_place(self.channel.key.encode(), id_)
        if place is None or not 0 < place.endpoint <= self.channel.endpoints_created:
            raise JobUnknown
        if place.endpoint != self.endpoint.number:
            raise JobOfAnotherEndpoint
        if self._ledger.facts(place.offset) is None:
            raise JobUnknown
        return place.offset

    async def details(self, offset: int) -> JobDetails:
        """A job; raises JobUnknown."""
        message = await self._open.jobs.message(offset)
        job = None if message is None else self._details(message)
        if job is None:
            raise JobUnknown
        return job

    async def queued(self, limit: int, after_key: int = -1) -> tuple[list[JobDetails], int | None]:
        """The first queued jobs after a key, and the key of the last one; None if there is none."""
        keys = self._ledger.queued_keys(limit, after_key)
        jobs = await self._details_of(map(offset_of, keys))
        return jobs, keys[-1] if keys else None

    async def dead(self, query: CursorQuery) -> list[JobDetails]:
        """Dead jobs nearest to the cursor of a query, newest first."""
        key = self.channel.key.encode()
        newer = query.newer and message_offset(key, query.newer.id)
        older = query.older and message_offset(key, query.older.id)
        if newer is not None:
            offsets = self._ledger.dead_after(newer, PAGE_SIZE)[::-1]
        else:
            limit = OFFSET_LIMIT if older is None else older
            offsets = self._ledger.dead_before(limit, PAGE_SIZE)
        return await self._details_of(offsets)

    def attempts(self, offset: int | None = None) -> list[tuple[str, Attempt]]:
        """The recent attempts at one job or at all, newest first, each with the id of its job."""
        target = self._open.targets.get(self.endpoint.number)
        attempts = [] if target is None else list(target.attempts)
        return [
            (self._job_id(attempt.offset, attempt.message_us), attempt)
            for attempt in reversed(attempts)
            if offset is None or attempt.offset == offset
        ]

    async def offset_at(self, time_us: int) -> int:
        """The offset of the first message that is not older than a time."""
        return await self._open.jobs.partition.offset_at(Microseconds(time_us))

    # -- changing jobs

    async def change_state(
        self, offset: int, state: str, timeout_seconds: int, lease: int | None
    ) -> int | None:
        """Change the state of a job; returns its lease if it changed and has one.

        Raises JobChangeRefused, JobLeaseEnded.
        """
        jobs = self._open.jobs
        change = self._ledger.change_state(offset, state, timeout_seconds, lease, jobs.now_us())
        if change is None:
            await jobs.durable()
            return None
        await jobs.store(_accepted(change))
        return self._ledger.lease(offset) or None

    async def claim(self, limit: int, timeout_seconds: int) -> list[JobDetails]:
        """Put the first queued jobs in flight, each with a new lease."""
        jobs = self._open.jobs
        claimed, changes = self._ledger.claim(limit, timeout_seconds, jobs.now_us())
        if changes:
            await jobs.store(*changes)
        messages = [(await self._message(job.offset), job.lease) for job in claimed]
        return [
            JobDetails(
                self._job_id(message.offset, message.timestamp_us),
                message.priority,
                JobState.INFLIGHT,
                changed_us=lease,
                lease=lease,
                message=message,
            )
            for message, lease in messages
            if message is not None
        ]

    async def extend(self, offset: int, lease: int, timeout_seconds: int) -> None:
        """Restart the timeout of a job in flight; raises JobLeaseEnded."""
        jobs = self._open.jobs
        change = self._ledger.extend(offset, lease, timeout_seconds, jobs.now_us())
        await jobs.store(_accepted(change))

    async def requeue(self, offset: int | None = None) -> bool:
        """Queue one dead job again, or all; returns whether there was any."""
        jobs = self._open.jobs
        change = self._ledger.requeue(_bitmap(offset), jobs.now_us())
        if change is None:
            return False
        await jobs.store(change)
        self._open.wake(self.endpoint.number)
        return True

    async def purge(self, offset: int | None = None) -> int:
        """Remove one dead job without retries left, or all; returns how many."""
        jobs = self._open.jobs
        change = self._ledger.purge(_bitmap(offset), jobs.now_us())
        if change is None:
            return 0
        await jobs.store(change)
        return change.jobs

    async def replay(self, first: int, stop: int | None) -> int:
        """Queue the jobs of a range of messages again, whatever their state; returns how many."""
        jobs = self._open.jobs
        first = max(first, jobs.partition.start_offset)
        last = OFFSET_LIMIT if stop is None else stop
        entries = self._ledger.replay(first, last, jobs.now_us())
        if entries:
            await jobs.store(*entries)
            self._open.wake(self.endpoint.number)
        return sum(getattr(entry, "jobs", 0) for entry in entries)

    # -- details

    async def _message(self, offset: int) -> JobMessage | None:
        """The message of a job; drops the job if the message is deleted or damaged."""
        try:
            message = await self._open.jobs.message(offset)
        except DataDamaged as error:
            _events.error("message_damaged", channel=self.channel.id, reason=str(error))
            message = None
        if message is None:
            self._ledger.drop(offset)
        return message

    async def _details_of(self, offsets: Iterable[int]) -> list[JobDetails]:
        found = []
        for offset in offsets:
            message = await self._message(offset)
            job = None if message is None else self._details(message)
            if job is not None:
                found.append(job)
        return found

    def _details(self, message: JobMessage) -> JobDetails | None:
        """The current state of the job for a message; None if there is none any more."""
        facts = self._ledger.facts(message.offset)
        if facts is None:
            return None
        return JobDetails(
            self._job_id(message.offset, message.timestamp_us),
            message.priority,
            facts.state,
            facts.changed_us or message.timestamp_us,
            self._ledger.lease(message.offset) or 0,
            message,
        )

    def _job_id(self, offset: int, message_us: int) -> str:
        place = JobPlace(self.endpoint.number, offset)
        return job_id(self.channel.key.encode(), place, message_us)


def _bitmap(offset: int | None) -> BitMap64 | None:
    return None if offset is None else BitMap64([offset])


def _accepted(change: Change | Refusal) -> Change:
    if isinstance(change, Refusal):
        raise (JobLeaseEnded if change is Refusal.LEASE else JobChangeRefused)(change.value)
    return change
