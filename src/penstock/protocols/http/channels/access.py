"""Who asks: channels, consumers and jobs by their names, and the tokens that go with them."""

from __future__ import annotations

from typing import NamedTuple

from penstock.delivery.channels.consumer_jobs import ConsumerJobs
from penstock.delivery.channels.service import ChannelService
from penstock.ledger.job_ids import job_place
from penstock.ledger.job_states import JobFacts
from penstock.metadata.channel_records import PULL, Channel, Consumer
from penstock.protocols.http.channels.replies import ChannelRefusal, not_found
from penstock.protocols.http.channels.requests import same
from penstock.protocols.http.routes import Request

CHANNEL_TOKEN = b"x-broker-channel-token"
CONSUMER_TOKEN = b"x-broker-consumer-token"
_NO_JOB = "job could not be found"


class AskedJob(NamedTuple):
    """A job that a request is about."""

    asked: ConsumerJobs
    offset: int
    facts: JobFacts


class Access:
    """Finds what a request names; raises ChannelRefusal with what the API says when it may not."""

    def __init__(self, service: ChannelService) -> None:
        self._service, self._store = service, service.store

    def channel(self, request: Request) -> Channel:
        found = self._store.channels.get(request.path["channel"])
        if found is None:
            raise not_found()
        return found

    def known_channel(self, request: Request) -> Channel:
        """A channel whose token the caller has."""
        channel = self.channel(request)
        if not same(request.header(CHANNEL_TOKEN), channel.token):
            raise ChannelRefusal(403, "channel token does not match")
        return channel

    def consumer(self, request: Request, channel: Channel) -> Consumer:
        found = self._store.consumers(channel.id).get(request.path["consumer"])
        if found is None:
            raise not_found()
        return found

    async def asked(
        self,
        request: Request,
        pull: bool = False,
        unknown: ChannelRefusal | None = None,
    ) -> ConsumerJobs:
        """A consumer whose tokens the caller has; with `pull` it must be one that pulls.

        `unknown` is raised when there is no such consumer.
        """
        channel = self.known_channel(request)
        consumer = self._store.consumers(channel.id).get(request.path["consumer"])
        if consumer is None:
            raise unknown or ChannelRefusal(401, "consumer could not be found")
        if not same(request.header(CONSUMER_TOKEN), consumer.token):
            raise ChannelRefusal(403, "consumer token does not match")
        if pull and consumer.type != PULL:
            raise ChannelRefusal(412, "consumer not pull based")
        return await self._service.jobs(channel, consumer)

    def job(self, request: Request, asked: ConsumerJobs, foreign: int = 401) -> AskedJob:
        """A job of this consumer; `foreign` is the status for one of another consumer."""
        place = job_place(asked.channel.key.encode(), request.path["job"])
        if place is None or not 0 < place.consumer <= asked.channel.consumers:
            raise ChannelRefusal(404, _NO_JOB)
        if place.consumer != asked.consumer.number:
            raise ChannelRefusal(foreign, _NO_JOB)
        facts = asked.ledger.facts(place.offset)
        if facts is None:
            raise ChannelRefusal(404, _NO_JOB)
        return AskedJob(asked, place.offset, facts)
