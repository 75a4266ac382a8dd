"""Channels that this broker opens, loses and opens again, and their entities."""

from __future__ import annotations

import msgspec
import pytest

from penstock.delivery.channels.entities import Channel, Versioned
from penstock.delivery.channels.open_channels import OpenChannels, topic_name
from penstock.delivery.channels.records import ChannelRecords, EndpointSpec
from penstock.delivery.channels.sealing import Sealing
from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.store import ChannelStore, JobFloors
from penstock.ledger.job_ids import ENDPOINTS_MAX
from penstock.ledger.job_states import JobState, offset_of
from penstock.metadata import Revision
from penstock.model.errors import NameInvalid, ResourceInUse, SignatureRequired
from penstock.model.names import TopicName
from penstock.model.run import Run
from penstock.model.units import ONLY_PARTITION
from penstock.topics import OpenTopic
from tests.broker.storage import World, flush
from tests.broker.topics import BY_REGION, P0, Served, push, serve
from tests.eventually import eventually

R0 = Revision(0)


class Lab:
    """The channels of a broker."""

    def __init__(self, served: Served, settings: ChannelSettings | None = None) -> None:
        host = served.host
        self.topics = served.topics
        self.store = ChannelStore(host.metadata, host.keys, Sealing())
        floors = JobFloors(host.metadata, host.keys, host.ownership.guard)
        self.channels = OpenChannels(
            self.store, served.topics, settings or ChannelSettings(), floors, host.clock
        )
        self.records = ChannelRecords(self.channels)

    async def begin(self) -> Lab:
        await self.store.open()
        await self.channels.open()
        return self

    async def channel(self) -> tuple[Channel, OpenTopic]:
        await self.records.put_channel("c", "", "", None)
        channel = self.store.channels.get("c")
        assert channel is not None
        return channel, await self.channels.topic("c")

    async def endpoint(self, channel: Channel, id_: str, kind: str = "pull") -> int:
        spec = EndpointSpec("", "", "http://127.0.0.1:9/", kind)
        written = await self.records.put_endpoint(channel, id_, spec, None)
        assert written is not None
        return written.entity.number

    async def close(self) -> None:
        await self.channels.close(1)
        await self.store.close()


@pytest.mark.feature("C15")
async def test_a_topic_that_is_opened_again_has_its_jobs(world: World) -> None:
    lab = await Lab(await serve(world)).begin()
    channel, opened = await lab.channel()
    number = await lab.endpoint(channel, "k")
    await push(opened, b"a", b"b")
    jobs = (await lab.channels.find(channel)).jobs
    await jobs.catch_up()
    await jobs.store(jobs.ledgers[number].change_state(0, "INFLIGHT", 0, None, jobs.now_us()))  # type: ignore[arg-type]
    lab.topics._close(opened.topic.name)
    assert lab.channels.get("c") is None
    assert jobs.ledgers == {}
    again = await lab.topics.find(opened.topic.name)
    assert again is not opened

    async def is_open() -> bool:
        return lab.channels.get("c") is not None

    await eventually(is_open)
    found = lab.channels.get("c")
    assert found is not None
    ledger = found.jobs.ledgers[number]
    assert list(map(offset_of, ledger.queued_keys(9))) == [1]
    assert ledger.counts()[JobState.INFLIGHT] == 1
    await lab.close()


@pytest.mark.feature("C23")
async def test_a_topic_that_is_opened_again_is_guarded_before_any_publish(
    world: World,
) -> None:
    lab = await Lab(await serve(world), ChannelSettings(signed_only=True)).begin()
    _, opened = await lab.channel()
    lab.topics._close(opened.topic.name)
    again = await lab.topics.find(opened.topic.name)
    with pytest.raises(SignatureRequired):
        again.partition(ONLY_PARTITION).append(Run(b"c", [b"x"]))
    await lab.close()


@pytest.mark.feature("C16")
async def test_a_channel_has_no_more_endpoints_than_ids_can_number(world: World) -> None:
    lab = await Lab(await serve(world)).begin()
    channel, _ = await lab.channel()
    nearly = msgspec.structs.replace(channel, endpoints_created=ENDPOINTS_MAX - 1)
    assert await lab.store.put(Versioned(nearly, lab.store.channels.revision("c")))
    assert await lab.endpoint(channel, "last") == ENDPOINTS_MAX
    with pytest.raises(ResourceInUse, match="limit ENDPOINTS_MAX"):
        await lab.endpoint(channel, "one-more")
    await lab.close()


@pytest.mark.feature("C01")
async def test_every_endpoint_in_the_store_has_jobs(world: World) -> None:
    lab = await Lab(await serve(world)).begin()
    channel, opened = await lab.channel()
    one, two = await lab.endpoint(channel, "one"), await lab.endpoint(channel, "two")
    assert (one, two) == (1, 2)
    found = await lab.channels.find(channel)
    assert set(found.targets) == set(found.jobs.ledgers) == {1, 2}
    stored = lab.store.endpoints("c").find("one")
    assert stored is not None
    await lab.records.delete_endpoint(stored)
    assert set(found.targets) == set(found.jobs.ledgers) == {2}
    fresh = lab.store.channels.get("c")
    assert fresh is not None
    assert await lab.endpoint(fresh, "one") == 3
    await push(opened, b"a")
    await found.jobs.catch_up()
    assert found.jobs.ledgers[3].counts()[JobState.QUEUED] == 1
    await lab.close()


@pytest.mark.feature("C21")
async def test_an_endpoint_is_disabled_and_enabled(world: World) -> None:
    lab = await Lab(await serve(world)).begin()
    channel, _ = await lab.channel()
    number = await lab.endpoint(channel, "k", "push")
    endpoint = lab.store.endpoints("c").get("k")
    assert endpoint is not None
    await lab.channels.set_disabled(endpoint, "because")
    await lab.channels.set_disabled(endpoint, "because")
    target = lab.channels.target(endpoint)
    assert target is not None
    assert (target.endpoint.disabled_reason, target.endpoint.number) == ("because", number)
    await lab.channels.set_disabled(endpoint, "")
    assert target.endpoint.disabled_reason == ""
    await lab.close()


async def test_a_topic_with_columns_cannot_be_a_channel(world: World) -> None:
    served = await serve(world)
    lab = await Lab(served).begin()
    await served.topics.create_topic(BY_REGION)
    with pytest.raises(ResourceInUse, match="raw messages"):
        await lab.channels.topic(BY_REGION.name.topic)
    await lab.close()


def test_the_id_of_a_channel_is_a_plain_topic_name() -> None:
    assert topic_name("c") == TopicName("default", "default", "c")
    for name in ("a/b", "t/n/c", "tenants/t/namespaces/n/topics/c", "a.b", ""):
        with pytest.raises(NameInvalid):
            topic_name(name)


@pytest.mark.feature("C15")
async def test_a_broker_that_takes_over_without_the_disk_continues_from_the_floors(
    world: World,
) -> None:
    served = await serve(world)
    lab = await Lab(served).begin()
    channel, opened = await lab.channel()
    number = await lab.endpoint(channel, "k")
    await push(opened, *(b"%d" % n for n in range(6)))
    jobs = (await lab.channels.find(channel)).jobs
    await jobs.catch_up()
    for offset in (0, 1, 2):
        for state in ("INFLIGHT", "DELIVERED"):
            ledger, now = jobs.ledgers[number], jobs.now_us()
            await jobs.store(ledger.change_state(offset, state, 0, None, now))  # type: ignore[arg-type]
    assert opened.tier is not None
    await flush(opened.tier)
    await lab.close()
    await served.crash()
    await world.depose(opened.topic.name)
    other = await Lab(await serve(world, name="b2")).begin()
    found = await other.channels.find(channel)
    assert found.jobs.opened.log.next_offset(P0) >= 6
    ledger = found.jobs.ledgers[number]
    assert list(map(offset_of, ledger.queued_keys(9))) == [3, 4, 5]
    message = await found.jobs.message(4)
    assert message is not None
    assert message.payload == b"4"
    await other.close()


@pytest.mark.feature("C15")
async def test_a_channel_of_an_unopened_topic_is_opened_at_the_start(world: World) -> None:
    served = await serve(world)
    first = await Lab(served).begin()
    channel, opened = await first.channel()
    number = await first.endpoint(channel, "k")
    await push(opened, b"a")
    restarted = Served(await world.broker(await served.crash()))
    await restarted.topics.start()
    again = await Lab(restarted).begin()
    assert again.channels.get("c") is not None
    jobs = (await again.channels.find(channel)).jobs
    await jobs.catch_up()
    assert jobs.ledgers[number].counts()[JobState.QUEUED] == 1
    await first.close()
    await again.close()
