"""How the channels are: what was seeded, jobs by state, dead letters. No page has a token on it."""

from __future__ import annotations

from typing import Any, Final

from penstock.delivery.channels.jobs import ChannelJobs
from penstock.delivery.channels.service import ChannelService
from penstock.ledger.job_states import JobState
from penstock.ledger.jobs import JobLedger
from penstock.model.errors import PenstockError
from penstock.model.times import time_text_us
from penstock.protocols.http.channels.replies import json
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

INITIALIZED: Final = 3


class StatusPages:
    """Serves status."""

    def __init__(self, service: ChannelService) -> None:
        self._service, self._store = service, service.store

    async def status(self, request: Request) -> Reply:
        seed = self._service.seed
        shown: dict[str, Any] = {"DataHash": "", "Producers": [], "Channels": [], "Consumers": []}
        if seed is not None:
            shown = {
                "DataHash": seed.digest.hex(),
                "Producers": [{"ID": k, "Name": name} for k, (name, _) in seed.producers.items()],
                "Channels": [{"ID": k, "Name": name} for k, (name, _) in seed.channels.items()],
                "Consumers": [
                    {"ID": c.id, "Name": c.name, "Channel": c.channel, "Type": c.type}
                    for c in seed.consumers
                ],
            }
        return json({"SeedData": shown, "AppStatus": INITIALIZED})

    async def job_status(self, request: Request) -> Reply:
        answer: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for id_, channel in list(self._service.channels):
            rows = answer[id_] = {}
            channel.jobs.forget_deleted()
            for target in list(channel.targets.values()):
                if (ledger := target.ledger) is not None:
                    ledger.tick(channel.jobs.now_us())
                    rows[target.consumer.id] = [
                        await _row(channel.jobs, ledger, state, count)
                        for state, count in ledger.numbers().items()
                        if count
                    ]
        return json(answer)

    async def dlq_status(self, request: Request) -> Reply:
        rows = []
        for id_, channel in self._service.channels:
            record = self._store.channels.get(id_)
            channel.jobs.forget_deleted()
            for target in channel.targets.values():
                if record is not None and (ledger := target.ledger) is not None:
                    ledger.tick(channel.jobs.now_us())
                    rows.append(
                        {
                            "channelId": id_,
                            "channelName": record.name,
                            "consumerId": target.consumer.id,
                            "consumerName": target.consumer.name,
                            "deadCount": ledger.numbers()[JobState.DEAD],
                        }
                    )
        return json({"consumers": rows})


async def _row(jobs: ChannelJobs, ledger: JobLedger, state: JobState, count: int) -> dict[str, Any]:
    """How many jobs are in a state, and the times of their oldest and newest message."""
    span = ledger.span(state) if state is not JobState.DELIVERED else None
    first, last = span or (ledger.start, ledger.head - 1)
    times = [await _time(jobs, offset) for offset in (first, last)]
    return {
        "status": int(state),
        "count": count,
        "oldestItemTimestamp": times[0],
        "newestItemTimestamp": times[1],
    }


async def _time(jobs: ChannelJobs, offset: int) -> str:
    """Of a message; empty when it is gone or cannot be read."""
    try:
        message = await jobs.message(offset)
    except PenstockError:
        return ""
    return "" if message is None else time_text_us(message.timestamp_us)
