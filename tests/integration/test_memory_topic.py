"""A topic in memory whose oldest messages have left the cache: all views agree on what is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.eventually import eventually
from tests.integration.process import FREE_PORT, Broker

TOPIC = "/v1/tenants/default/namespaces/default/topics"
PUBLISHED = 300
SMALL_CACHE = ("--set", "storage.wal.cache.max_bytes=100000")
WORK = {"durable_name": "d", "ack_policy": "explicit"}


@pytest.mark.feature("T24")
async def test_every_view_shows_what_is_still_in_memory(tmp_path: Path) -> None:
    with Broker("--data", str(tmp_path), *FREE_PORT, *SMALL_CACHE) as broker:
        client = await nats.connect(broker.nats_url)

        async def api(endpoint: str, **body: Any) -> dict[str, Any]:
            reply = await client.request(f"$JS.API.{endpoint}", json.dumps(body).encode())
            answer: dict[str, Any] = json.loads(reply.data)
            return answer

        async def fetched(name: str, count: int) -> list[int]:
            """Sequences that a pull of one consumer gets, each acknowledged."""
            inbox, found = client.new_inbox(), list[int]()
            subscription = await client.subscribe(inbox)
            pull = json.dumps({"batch": count, "expires": 5_000_000_000}).encode()
            await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.m.{name}", pull, inbox)
            while len(found) < count:
                message = await subscription.next_msg(10)
                found.append(message.metadata.sequence.stream)
                await client.request(message.reply, b"+ACK")
            await subscription.unsubscribe()
            return found

        created = broker.post(TOPIC, {"topic": "m", "durability": "memory"})
        assert created.status in (200, 201), created
        await api("CONSUMER.CREATE.m.d", stream_name="m", config=WORK)
        for number in range(PUBLISHED):
            await client.request("m", b"%d" % number + b"x" * 1000)
        state = (await api("STREAM.INFO.m"))["state"]
        first, last = state["first_seq"], state["last_seq"]
        assert 1 < first < last == PUBLISHED
        assert state["messages"] == last - first + 1
        assert state["bytes"] < PUBLISHED * 1000
        (partition,) = broker.get(f"{TOPIC}/m/partitions").body["partitions"]
        counted = partition["start_offset"], partition["next_offset"], partition["messages"]
        assert counted == (first - 1, last, last - first + 1)
        plan = broker.get(f"{TOPIC}/m/plan").body
        (planned,) = plan["partitions"]
        assert (planned["start_offset"], planned["next_offset"]) == (first - 1, last)
        topics = [{"topic": "m", "offset": 0}]
        wanted = {"namespace": "default/default", "topics": topics, "max_messages": 1000}
        (gone,) = broker.post("/v1/fetch", wanted).body["topics"]
        assert gone["message"].endswith(f"the earliest is {first - 1}")
        assert (await api("STREAM.MSG.GET.m", seq=first - 1))["error"]["err_code"] == 10037
        assert (await api("STREAM.MSG.GET.m", seq=first))["message"]["seq"] == first
        info = await api("CONSUMER.INFO.m.d")
        assert info["num_pending"] == last - first + 1
        assert await fetched("d", 5) == list(range(first, first + 5))
        await api("CONSUMER.CREATE.m.n", stream_name="m", config=WORK | {"durable_name": "n"})
        assert await fetched("n", 5) == list(range(first, first + 5))
        for number in range(PUBLISHED):
            await client.request("m", b"%d" % number + b"x" * 1000)
        start = (await api("STREAM.INFO.m"))["state"]["first_seq"]
        assert start > first + 5

        async def skipped() -> bool:
            info = await api("CONSUMER.INFO.m.d")
            return bool(info["num_pending"] == 2 * PUBLISHED - start + 1)

        await eventually(skipped)
        assert await fetched("d", 5) == list(range(start, start + 5))
        await client.close()
