"""Who asks: channels, consumers and jobs by their names, and the tokens that go with them."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from penstock.delivery.channels.channels import OpenChannel
from penstock.delivery.channels.messages import JobMessage
from penstock.delivery.channels.service import ChannelService
from penstock.doors.http.channels.replies import Plain, not_found
from penstock.doors.http.channels.requests import ChannelRequest, same
from penstock.ledger.job_ids import job_place
from penstock.ledger.job_states import JobFacts
from penstock.ledger.jobs import JobLedger
from penstock.metadata.channel_records import PULL, Channel, Consumer
from penstock.model.errors import DataDamaged

CHANNEL_TOKEN = b"x-broker-channel-token"
CONSUMER_TOKEN = b"x-broker-consumer-token"
_NO_JOB = "job could not be found"
_events = structlog.get_logger(__name__)


class Asked(NamedTuple):
    """A consumer that a request is about, and its jobs."""

    channel: Channel
    consumer: Consumer
    open: OpenChannel
    ledger: JobLedger


class AskedJob(NamedTuple):
    """A job that a request is about."""

    asked: Asked
    offset: int
    facts: JobFacts


class Access:
    """Finds what a request names; raises Plain with what the API says when it may not."""

    def __init__(self, service: ChannelService) -> None:
        self._store, self._channels = service.store, service.channels

    def channel(self, request: ChannelRequest) -> Channel:
        found = self._store.channels.get(request.path["channel"])
        if found is None:
            raise not_found()
        return found

    def known_channel(self, request: ChannelRequest) -> Channel:
        """A channel whose token the caller has."""
        channel = self.channel(request)
        if not same(request.header(CHANNEL_TOKEN), channel.token):
            raise Plain(403, "channel token does not match")
        return channel

    def consumer(self, request: ChannelRequest, channel: Channel) -> Consumer:
        found = self._store.consumers(channel.id).get(request.path["consumer"])
        if found is None:
            raise not_found()
        return found

    async def asked(
        self,
        request: ChannelRequest,
        pull: bool = False,
        unknown: Plain | None = None,
    ) -> Asked:
        """A consumer whose tokens the caller has; with `pull` it must be one that pulls.

        `unknown` is raised when there is no such consumer.
        """
        channel = self.known_channel(request)
        consumer = self._store.consumers(channel.id).get(request.path["consumer"])
        if consumer is None:
            raise unknown or Plain(401, "consumer could not be found")
        if not same(request.header(CONSUMER_TOKEN), consumer.token):
            raise Plain(403, "consumer token does not match")
        if pull and consumer.type != PULL:
            raise Plain(412, "consumer not pull based")
        return await self.ledger(channel, consumer)

    async def ledger(self, channel: Channel, consumer: Consumer) -> Asked:
        open_channel = await self._channels.find(channel)
        await open_channel.jobs.catch_up()
        ledger = open_channel.jobs.ledgers.get(consumer.number)
        if ledger is None:
            raise Plain(503, "the consumer's jobs are not ready yet; retry later")
        ledger.tick(open_channel.jobs.now_us())
        return Asked(channel, consumer, open_channel, ledger)

    async def message(self, asked: Asked, offset: int) -> JobMessage | None:
        """The message of a job; one that is gone or cannot be read any more takes its job along."""
        try:
            message = await asked.open.jobs.message(offset)
        except DataDamaged as error:
            _events.error("message_damaged", channel=asked.channel.id, reason=str(error))
            message = None
        if message is None:
            asked.ledger.drop(offset)
        return message

    def job(self, request: ChannelRequest, asked: Asked, foreign: int = 401) -> AskedJob:
        """A job of this consumer; `foreign` is the status for one of another consumer."""
        place = job_place(asked.channel.key.encode(), request.path["job"])
        if place is None:
            raise Plain(404, _NO_JOB)
        if place.consumer != asked.consumer.number:
            raise Plain(foreign, _NO_JOB)
        facts = asked.ledger.facts(place.offset)
        if facts is None:
            raise Plain(404, _NO_JOB)
        return AskedJob(asked, place.offset, facts)
