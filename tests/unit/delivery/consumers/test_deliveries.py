from typing import Any

import pytest

from penstock.delivery.consumers.records import ConsumerRecords
from penstock.metadata import MetadataUnavailable
from tests.broker.consumers import UNSETTLED, lab, until
from tests.broker.storage import World


async def test_consumers_are_loaded_and_closed_with_their_streams(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        served = here.deliveries
        assert served.get("S") is None
        assert await served.of("S") is None
        await peer.stream("S", "s")
        await peer.consumer("S", "d")
        assert served.count(here.stream("S")) == 1
        assert (await peer.api("STREAM.INFO.S"))["state"]["consumer_count"] == 1
        await peer.api("STREAM.DELETE.S")
        assert served.get("S") is None
        await peer.stream("S", "s")
        assert served.count(here.stream("S")) == 0


async def test_a_request_waits_while_consumers_are_loaded(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.consumer("S", "d")
        found = await here.crash()
    async with lab(world, found) as again:
        assert again.deliveries.loading("S") is not None
        consumers = await again.deliveries.of("S")
        assert consumers is not None
        assert [consumer.name for consumer in consumers] == ["d"]
        await again.deliveries.loaded()
        assert again.deliveries.loading("S") is None


async def test_consumers_are_not_created_while_records_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        first = await peer.next(peer.pull("S", "d"))
        await peer.request(first.reply, b"+ACK")
        found = await here.crash()
    away, read = [True], ConsumerRecords.all

    async def unavailable(self: ConsumerRecords) -> Any:
        if away:
            raise MetadataUnavailable("the store does not answer")
        return await read(self)

    monkeypatch.setattr(ConsumerRecords, "all", unavailable)
    async with lab(world, found, UNSETTLED._replace(retry_seconds=0.01)) as again:
        peer = await again.peer()
        for name in ("CREATE", "INFO"):
            body = {"stream_name": "S", "config": {"durable_name": "d"}}
            told = await peer.api(f"CONSUMER.{name}.S.d", body if name == "CREATE" else None)
            assert told["error"]["err_code"] == 10008
        away.clear()
        await until(lambda: again.consumers("S").get("d") is not None)
        assert (await peer.info("S", "d"))["ack_floor"]["stream_seq"] == 1


async def test_pending_pulls_receive_a_status_before_the_server_closes(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.consumer("S", "d")
        sid = peer.pull("S", "d", {"batch": 4, "expires": 60_000_000_000, "max_bytes": 900})
        await peer.synced()
        await here.drain()
        assert (await peer.next(sid)).headers == (
            b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 4\r\n"
            b"Nats-Pending-Bytes: 900\r\n\r\n"
        )
