from tests.unit.delivery.lab import lab
from tests.unit.tiers.core import World


async def test_consumers_come_and_go_with_their_streams(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        deliveries = here.deliveries
        assert deliveries.get("S") is None
        assert await deliveries.of("S") is None
        await peer.stream("S", "s")
        await peer.consumer("S", "d")
        assert deliveries.count(here.stream("S")) == 1
        assert (await peer.api("STREAM.INFO.S"))["state"]["consumer_count"] == 1
        await peer.api("STREAM.DELETE.S")
        assert deliveries.get("S") is None
        await peer.stream("S", "s")
        assert deliveries.count(here.stream("S")) == 0


async def test_whoever_asks_waits_for_what_is_being_read(world: World) -> None:
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


async def test_a_record_that_cannot_be_read_costs_only_its_stream(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        for name in ("A", "B"):
            await peer.stream(name, name)
            await peer.consumer(name, "d")
        [entry, _] = (await world.metadata.range("/penstock/subscriptions/")).entries[:2]
        await world.metadata.put(entry.key, b"what?")
        found = await here.crash()
    async with lab(world, found) as again:
        await again.deliveries.loaded()
        counts = {name: again.deliveries.count(again.stream(name)) for name in ("A", "B")}
        assert counts == {"A": 0, "B": 1}


async def test_whoever_waits_is_told_before_the_door_closes(world: World) -> None:
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
