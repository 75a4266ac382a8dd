"""Handlers for the status of channels: the seed, jobs by state, dead jobs. They show no tokens."""

from __future__ import annotations

from typing import Any, Final

from penstock.delivery.channels import ChannelService
from penstock.model.times import time_text_us
from penstock.protocols.http.channels.replies import json_reply
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

INITIALIZED: Final = 3


class StatusHandlers:
    """Shows the status of all channels."""

    def __init__(self, service: ChannelService) -> None:
        self._service = service

    async def seed(self, request: Request) -> Reply:
        seed = self._service.seed
        view: dict[str, Any] = {"DataHash": "", "Producers": [], "Channels": [], "Consumers": []}
        if seed is not None:
            view = {
                "DataHash": seed.digest.hex(),
                "Producers": [{"ID": k, "Name": name} for k, (name, _) in seed.producers.items()],
                "Channels": [{"ID": k, "Name": name} for k, (name, _) in seed.channels.items()],
                "Consumers": [
                    {"ID": e.id, "Name": e.name, "Channel": e.channel, "Type": e.type}
                    for e in seed.endpoints
                ],
            }
        return json_reply({"SeedData": view, "AppStatus": INITIALIZED})

    async def jobs(self, request: Request) -> Reply:
        counts = await self._service.job_counts()
        return json_reply(
            {
                channel: {
                    endpoint: [
                        {
                            "status": int(row.state),
                            "count": row.jobs,
                            "oldestItemTimestamp": _time_text(row.oldest_us),
                            "newestItemTimestamp": _time_text(row.newest_us),
                        }
                        for row in rows
                    ]
                    for endpoint, rows in endpoints.items()
                }
                for channel, endpoints in counts.items()
            }
        )

    async def dead_jobs(self, request: Request) -> Reply:
        rows = [
            {
                "channelId": row.channel.id,
                "channelName": row.channel.name,
                "consumerId": row.endpoint.id,
                "consumerName": row.endpoint.name,
                "deadCount": row.jobs,
            }
            for row in self._service.dead_counts()
        ]
        return json_reply({"consumers": rows})


def _time_text(time_us: int | None) -> str:
    return "" if time_us is None else time_text_us(time_us)
