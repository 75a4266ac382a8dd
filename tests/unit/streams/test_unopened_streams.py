"""Streams that were not opened since the broker started, as NATS clients see them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.broker.consumers import NO_MESSAGES, Lab, Peer, lab
from tests.broker.storage import World
from tests.broker.topics import BY_REGION, push, region, spec
from tests.unit.topics.test_unopened import failing


async def fill(here: Lab) -> None:
    peer = await here.peer()
    await peer.stream("S", "s.>", allow_direct=True)
    await peer.stored("s.a", b"m1", b"m2")
    await peer.consumer("S", "d")
    await peer.stream("T", "t")
    await here.topics.create_topic(spec("plain"))


async def restarted(world: World) -> Any:
    """A broker that has three streams and has opened none."""
    async with lab(world) as here:
        await fill(here)
        found = await here.crash()
    return lab(world, found, opened=False)


def is_open(here: Lab, *names: str) -> bool:
    return sorted(opened.topic.name.topic for opened in here.topics) == sorted(names)


async def test_a_publish_opens_the_stream_that_stores_its_subject(world: World) -> None:
    async with await restarted(world) as here:
        peer = await here.peer()
        answers = [await peer.request(subject, b"x") for subject in ("s.a", "plain")]
        assert [msgspec.json.decode(answer.payload) for answer in answers] == [
            {"stream": "S", "seq": 3},
            {"stream": "plain", "seq": 1},
        ]
        assert is_open(here, "S", "plain")


async def test_publishes_are_stored_in_order_whether_the_stream_is_open_or_not(
    world: World,
) -> None:
    async with await restarted(world) as here:
        peer = await here.peer()
        for number in range(100):
            peer.publish("s.a", b"%d" % number)
        await peer.synced()
        for number in range(100, 200):
            peer.publish("s.a", b"%d" % number)
        await peer.stored("s.a", b"200")
        sid = peer.pull("S", "d", {"batch": 300, "no_wait": True})
        payloads = [message.payload for message in await peer.several(203, sid)]
        assert payloads == [b"m1", b"m2", *(b"%d" % number for number in range(201))]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("STREAM.INFO.S", None),
        ("STREAM.MSG.GET.S", {"seq": 1}),
        ("STREAM.PURGE.S", None),
        ("CONSUMER.INFO.S.d", None),
        ("CONSUMER.NAMES.S", None),
        ("CONSUMER.LIST.S", None),
        ("CONSUMER.CREATE.S.e", {"stream_name": "S", "config": {"durable_name": "e"}}),
        ("CONSUMER.DELETE.S.d", None),
        ("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "allow_direct": True}),
    ],
)
async def test_a_request_about_a_stream_opens_it_alone(
    world: World, endpoint: str, body: dict[str, Any] | None
) -> None:
    async with await restarted(world) as here:
        told = await (await here.peer()).api(endpoint, body)
        assert "error" not in told
        assert is_open(here, "S")


async def test_a_direct_get_opens_the_stream(world: World) -> None:
    async with await restarted(world) as here:
        peer = await here.peer()
        message = await peer.request("$JS.API.DIRECT.GET.S", b'{"seq":2}')
        assert message.payload == b"m2"
        assert is_open(here, "S")


async def test_a_pull_and_an_ack_open_the_stream(world: World) -> None:
    async with await restarted(world) as here:
        peer = await here.peer()
        message = await peer.next(peer.pull("S", "d"))
        assert (message.subject, message.payload) == ("s.a", b"m1")
        await here.settled("S")
        found = await here.crash()
    async with lab(world, found, opened=False) as here:
        peer = await here.peer()
        assert (await peer.request(message.reply, b"+ACK")).payload == b""
        assert (await peer.info("S", "d"))["num_pending"] == 1
        assert is_open(here, "S")


async def test_names_and_lists_include_unopened_streams(world: World) -> None:
    async with await restarted(world) as here:
        peer = await here.peer()
        assert (await peer.api("INFO"))["streams"] == 3
        assert (await peer.api("STREAM.NAMES"))["streams"] == ["S", "T", "plain"]
        assert (await peer.api("STREAM.NAMES", {"subject": "s.x"}))["streams"] == ["S"]
        assert is_open(here)
        listed = await peer.api("STREAM.LIST", {"subject": "s.x"})
        assert [(one["config"]["name"], one["state"]["messages"]) for one in listed["streams"]] == [
            ("S", 2)
        ]
        assert is_open(here, "S")


async def test_a_new_stream_may_not_have_the_name_or_subjects_of_an_unopened_one(
    world: World,
) -> None:
    async with await restarted(world) as here:
        peer = await here.peer()
        codes = []
        for name, subject in (("U", "s.b"), ("S", "other"), ("U", "plain")):
            config = {"name": name, "subjects": [subject]}
            codes.append((await peer.api(f"STREAM.CREATE.{name}", config))["error"]["err_code"])
        assert codes == [10065, 10058, 10065]
        await peer.stream("U", "u")
        assert not {"T"} & {opened.topic.name.topic for opened in here.topics}


async def test_a_mirror_of_an_unopened_stream_is_created_as_of_an_open_one(world: World) -> None:
    async with await restarted(world) as here:
        peer = await here.peer()
        told = await peer.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}})
        assert told["config"]["mirror_direct"] is True


async def test_a_deletion_opens_the_stream_and_deletes_it(world: World) -> None:
    async with await restarted(world) as here:
        peer = await here.peer()
        assert (await peer.api("STREAM.DELETE.S"))["success"] is True
        assert (await peer.api("STREAM.NAMES"))["streams"] == ["T", "plain"]
        peer.send(b'CONNECT {"headers":true,"no_responders":true}\r\n')
        assert (await peer.request("s.a", b"x")).headers.startswith(b"NATS/1.0 503")


async def test_a_partition_opens_its_topic(world: World) -> None:
    async with lab(world) as here:
        await here.topics.create_topic(BY_REGION)
        opened = await here.topics.find(BY_REGION.name)
        await opened.partitions.ensure([region("eu")])
        found = await here.crash()
    async with lab(world, found, opened=False) as here:
        told = await (await here.peer()).api("STREAM.INFO.regions--0")
        assert told["config"]["name"] == "regions--0"


async def test_a_topic_that_cannot_be_opened_delays_no_publisher(
    world: World,
) -> None:
    async with await restarted(world) as here:
        manifest = here.delivery_host.keys.manifest(spec("S").name)
        here.broker.metadata.steps.fail = failing(manifest)
        peer = await here.peer()
        peer.send(b'CONNECT {"headers":true,"no_responders":true}\r\n')
        assert (await peer.request("s.a", b"x")).headers.startswith(b"NATS/1.0 503")
        assert b'"seq"' in (await peer.request("t", b"x")).payload


async def test_a_dead_letter_opens_the_stream_that_stores_it(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s.>")
        await peer.stream("D", "dead")
        facts = {"penstock.dead_letter_subject": "dead"}
        await peer.consumer("S", "d", max_deliver=1, metadata=facts)
        await peer.stored("s.a", b"m1")
        found = await here.crash()
    async with lab(world, found, opened=False) as here:
        peer = await here.peer()
        message = await peer.next(peer.pull("S", "d"))
        peer.publish(message.reply, b"-NAK")
        sid = peer.pull("S", "d", {"batch": 1, "no_wait": True})
        assert (await peer.next(sid)).headers == NO_MESSAGES
        await here.settled("S")
        told: dict[str, Any] = {}
        while not told.get("state", {}).get("messages"):
            told = await peer.api("STREAM.INFO.D")
        assert told["state"]["messages"] == 1


async def test_the_other_protocols_open_a_stream_for_nats_too(world: World) -> None:
    async with await restarted(world) as here:
        peer = await here.peer()
        await push(await here.topics.find(spec("S").name), b"pushed")
        assert (await peer.request("$JS.API.DIRECT.GET.S", b'{"seq":3}')).payload == b"pushed"
        assert isinstance(peer, Peer)
