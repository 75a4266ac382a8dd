import pytest

from penstock.delivery.consumers.records import ConsumerRecords
from penstock.metadata.ownership import NotOwner
from tests.broker.consumers import lab
from tests.broker.storage import KEYS, World
from tests.unit.delivery.consumers.test_consumers import TOPIC, filled


async def test_a_recorded_consumer_is_read_again(world: World) -> None:
    async with lab(world) as here:
        await filled(here)
        records = ConsumerRecords(here.delivery_host, TOPIC)
        config = here.consumer("S", "d").config
        await records.put("other", config, 7, 3, 5)
        found = {record.name: (record, config) for record, config in await records.all()}
        assert sorted(found) == ["d", "other"]
        record, kept = found["other"]
        assert (record.created_us, record.start, record.picked_stop) == (7, 3, 5)
        assert kept == config
        await records.remove("other")
        assert [record.name for record, _ in await records.all()] == ["d"]


async def test_a_new_consumer_does_not_begin_where_an_earlier_one_of_its_name_was(
    world: World,
) -> None:
    async with lab(world) as here:
        await filled(here)
        records, key = ConsumerRecords(here.delivery_host, TOPIC), KEYS.progress(TOPIC, "other")
        config = here.consumer("S", "d").config
        await world.metadata.put(key, b"left over")
        await records.put("other", config, 7, 3, 0)
        assert await world.metadata.get(key) is not None
        await records.create("other", config, 8, 3, 0)
        assert await world.metadata.get(key) is None


async def test_records_of_partitions_are_distinct(world: World) -> None:
    async with lab(world) as here:
        await filled(here)
        host, config = here.delivery_host, here.consumer("S", "d").config
        first, second = ConsumerRecords(host, TOPIC, "1/"), ConsumerRecords(host, TOPIC, "2/")
        await first.put("d", config, 7, 3, 0)
        assert [(record.name, record.start) for record, _ in await first.all()] == [("d", 3)]
        assert await second.all() == []
        assert [record.name for record, _ in await ConsumerRecords(host, TOPIC).all()] == ["d"]


async def test_a_deposed_owner_records_nothing(world: World) -> None:
    async with lab(world) as here:
        await filled(here)
        records = ConsumerRecords(here.delivery_host, TOPIC)
        config = here.consumer("S", "d").config
        await world.depose(TOPIC)
        with pytest.raises(NotOwner):
            await records.put("late", config, 7, 3, 0)
        assert [record.name for record, _ in await records.all()] == ["d"]


async def test_a_record_that_cannot_be_read_costs_only_itself(world: World) -> None:
    async with lab(world) as here:
        await filled(here)
        records = ConsumerRecords(here.delivery_host, TOPIC)
        await records.put("other", here.consumer("S", "d").config, 7, 3, 5)
        await world.metadata.put(KEYS.consumer(TOPIC, "d"), b'{"name":"d"}')
        assert [record.name for record, _ in await records.all()] == ["other"]
