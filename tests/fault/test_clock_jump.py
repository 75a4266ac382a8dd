"""A broker whose time of day is set forward: every deadline in time of day follows.

The broker runs as a process of its own. Its `time.time_ns` adds what a file says, so that the jump
reaches it as one of the machine would; monotonic time goes on as before.
"""

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.eventually import eventually
from tests.integration.channels.api import Api, Channel
from tests.integration.process import FREE_PORT, Broker

HOUR_NS = 3_600_000_000_000
SHIFTED = """
import os, pathlib, time
_file, _time_ns = pathlib.Path(os.environ["SHIFT_FILE"]), time.time_ns
time.time_ns = lambda: _time_ns() + int(_file.read_text() or 0)
"""


class Shifted:
    """A broker whose clock can be set."""

    def __init__(self, directory: Path) -> None:
        self.shift = directory / "shift"
        self.shift.write_text("0")
        (directory / "site").mkdir()
        (directory / "site" / "sitecustomize.py").write_text(SHIFTED)
        paths = [str(directory / "site"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environ = {"PYTHONPATH": os.pathsep.join(paths), "SHIFT_FILE": str(self.shift)}
        self.broker = Broker("--data", str(directory / "data"), *FREE_PORT, environ=environ)

    def jump(self, nanoseconds: int) -> None:
        later = self.shift.with_suffix(".new")
        later.write_text(str(nanoseconds))
        later.rename(self.shift)


async def api(client: Client, endpoint: str, **body: Any) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{endpoint}", json.dumps(body).encode())
    found: dict[str, Any] = json.loads(answer.data)
    assert "error" not in found, found
    return found


async def messages(client: Client, stream: str) -> int:
    return int((await api(client, f"STREAM.INFO.{stream}"))["state"]["messages"])


def in_an_hour() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")


@pytest.mark.feature("P05")
async def test_every_deadline_in_time_of_day_follows_a_forward_jump(tmp_path: Path) -> None:
    shifted = Shifted(tmp_path)
    with shifted.broker as broker:
        client = await nats.connect(broker.nats_url)
        await api(client, "STREAM.CREATE.A", name="A", subjects=["a"], max_age=HOUR_NS)
        await api(client, "STREAM.CREATE.T", name="T", subjects=["t"], allow_msg_ttl=True)
        await api(client, "STREAM.CREATE.P", name="P", subjects=["p"])
        for subject in "atp":
            for _ in range(2):
                headers = {"Nats-TTL": "1h"} if subject == "t" else None
                await client.request(subject, b"x", headers=headers)
        paused = {"durable_name": "d", "ack_policy": "none", "pause_until": in_an_hour()}
        await api(client, "CONSUMER.CREATE.P.d", stream_name="P", config=paused)
        inbox = client.new_inbox()
        delivered = await client.subscribe(inbox)
        pull = json.dumps({"batch": 2, "expires": HOUR_NS}).encode()
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.P.d", pull, inbox)
        channel = await asyncio.to_thread(Channel, Api(broker.host, broker.port), "c")
        waiting = await asyncio.to_thread(channel.consumer, "one")
        answer = await asyncio.to_thread(
            lambda: channel.broadcast("later", X_Broker_Scheduled_For=in_an_hour())
        )
        assert answer.status == 201, answer
        await asyncio.sleep(1.2)
        assert [await messages(client, name) for name in "ATP"] == [2, 2, 2]
        assert delivered.pending_msgs == 0
        assert await asyncio.to_thread(waiting.payloads) == []
        shifted.jump(HOUR_NS + 5_000_000_000)

        async def expired() -> bool:
            return [await messages(client, name) for name in "ATP"] == [0, 0, 2]

        async def resumed() -> bool:
            return delivered.pending_msgs == 2

        async def sent() -> bool:
            return await asyncio.to_thread(waiting.payloads) == ["later"]

        for happened in (expired, resumed, sent):
            await eventually(happened)
        await client.close()
