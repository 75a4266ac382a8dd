"""The API of consumers: requests and replies."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from penstock.host.clock import Clock
from penstock.model.times import parse_time
from penstock.protocols.nats.jetstream.consumer_api import describe
from penstock.wire.jetstream.documents import SequenceInfo
from tests.broker.consumers import NO_MESSAGES, Lab, Peer, lab
from tests.broker.storage import World


async def test_times_of_events_that_never_happened_are_omitted(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.consumer("S", "d")
        info = await describe(here.consumer("S", "d"), {"a": 1}, Clock())
        assert info.config == {"a": 1}
        assert info.delivered == info.ack_floor == SequenceInfo(0, 0, UNSET)
        assert (info.push_bound, info.paused, info.pause_remaining) == (UNSET, UNSET, UNSET)
        assert info.priority_groups is UNSET


async def test_an_info_shows_the_times_of_the_last_delivery_and_ack(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        before = Clock().now_us() * 1000
        first = await peer.next(peer.pull("S", "d"))
        await peer.request(first.reply, b"+ACK")
        info = await describe(here.consumer("S", "d"), {}, Clock())
        active = (info.delivered.last_active, info.ack_floor.last_active)
        delivered, acked, told = (parse_time(str(text)) for text in (*active, info.ts))
        assert before <= delivered <= acked <= told


DURABLE = {"durable_name": "d", "name": "d", "ack_policy": "explicit"}


async def filled(here: Lab, count: int = 5) -> Peer:
    peer = await here.peer()
    await peer.stream("S", "s.>")
    for number in range(count):
        await peer.stored(f"s.{number}", b"m%d" % number)
    return peer


async def made(peer: Peer, name: str, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"stream_name": "S", "config": config, **more}
    return await peer.api(f"CONSUMER.CREATE.S{name}", body)


def refused(told: dict[str, Any]) -> tuple[int, int, str]:
    error = told["error"]
    return error["code"], error["err_code"], error["description"]


@pytest.mark.feature("P04")
async def test_a_consumer_is_made_and_described(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        told = await made(peer, ".d", DURABLE)
        assert list(told) == [
            "type",
            "stream_name",
            "name",
            "created",
            "config",
            "delivered",
            "ack_floor",
            "num_ack_pending",
            "num_redelivered",
            "num_waiting",
            "num_pending",
            "ts",
        ]
        assert told["type"] == "io.nats.jetstream.api.v1.consumer_create_response"
        assert (told["stream_name"], told["name"], told["num_pending"]) == ("S", "d", 5)
        assert told["config"]["ack_wait"] == 30_000_000_000
        info = await peer.info("S", "d")
        assert info["type"] == "io.nats.jetstream.api.v1.consumer_info_response"
        assert {**info, "type": told["type"], "ts": told["ts"]} == told


@pytest.mark.feature("P04")
async def test_creating_a_consumer_again_updates_it_or_changes_nothing(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        first = await made(peer, ".d", DURABLE)
        assert (await made(peer, ".d", DURABLE, action="create"))["created"] == first["created"]
        other = {**DURABLE, "max_ack_pending": 5}
        exists = await made(peer, ".d", other, action="create")
        assert refused(exists) == (400, 10148, "consumer already exists")
        changed = await made(peer, ".d", {**other, "description": "hi"}, action="update")
        assert changed["config"]["max_ack_pending"] == 5
        missing = await made(peer, ".x", {"name": "x"}, action="update")
        assert refused(missing) == (400, 10149, "consumer does not exist")
        fixed = await made(peer, ".d", {**DURABLE, "ack_policy": "none"}, action="update")
        assert refused(fixed) == (500, 10012, "ack policy can not be updated")


@pytest.mark.feature("P04")
async def test_the_older_subjects_make_consumers_too(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        body = {"stream_name": "S", "config": {"durable_name": "d2", "ack_policy": "explicit"}}
        assert (await peer.api("CONSUMER.DURABLE.CREATE.S.d2", body))["name"] == "d2"
        told = await made(peer, "", {"ack_policy": "explicit"})
        assert len(told["name"]) == 8
        assert "name" not in told["config"]
        assert told["config"]["inactive_threshold"] == 5_000_000_000
        assert refused(await made(peer, "", {"durable_name": "zz"}))[1] == 10020


async def test_a_filter_in_the_subject_must_be_that_of_the_body(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        config = {**DURABLE, "filter_subject": "s.1"}
        assert (await made(peer, ".d.s.1", config))["num_pending"] == 1
        assert refused(await made(peer, ".e.s.2", {"filter_subject": "s.1"}))[1] == 10131


@pytest.mark.feature("P04")
async def test_consumers_are_listed_in_pages(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        empty = await peer.api("CONSUMER.NAMES.S")
        assert (empty["total"], empty["limit"], empty["consumers"]) == (0, 1024, [])
        for name in ("b", "a", "c"):
            await peer.consumer("S", name)
        assert (await peer.api("CONSUMER.NAMES.S", {"offset": 1}))["consumers"] == ["b", "c"]
        listed = await peer.api("CONSUMER.LIST.S", {"offset": 2})
        assert (listed["total"], listed["offset"], listed["limit"]) == (3, 2, 256)
        assert [item["name"] for item in listed["consumers"]] == ["c"]
        assert listed["consumers"][0]["config"]["metadata"] == {"_nats.req.level": "0"}
        assert (await peer.api("CONSUMER.LIST.S", {"offset": 9}))["consumers"] == []


@pytest.mark.feature("P04")
async def test_missing_consumers_and_streams_are_not_found(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        no_consumer, no_stream = (404, 10014), (404, 10059)
        for request, expected in {
            "CONSUMER.INFO.S.x": no_consumer,
            "CONSUMER.INFO.X.x": no_stream,
            "CONSUMER.DELETE.S.x": no_consumer,
            "CONSUMER.NAMES.X": no_stream,
            "CONSUMER.LIST.X": no_stream,
            "CONSUMER.PAUSE.S.x": no_consumer,
            "CONSUMER.RESET.S.x": no_consumer,
        }.items():
            told = await peer.api(request)
            assert refused(told)[:2] == expected, request
        body = {"stream_name": "X", "config": {}}
        assert refused(await peer.api("CONSUMER.CREATE.X.x", body))[:2] == no_stream


@pytest.mark.feature("P19")
async def test_requests_that_say_too_much_or_nonsense_are_refused(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.consumer("S", "d")
        for name in ("INFO", "DELETE"):
            told = await peer.api(f"CONSUMER.{name}.S.d", {"x": 1})
            assert refused(told) == (400, 10038, "expected an empty request payload")
        assert "error" not in await peer.api("CONSUMER.INFO.S.d", {})
        assert refused(await made(peer, ".e", {"foo": 1}))[:2] == (400, 10025)
        assert refused(await made(peer, ".e", {}, action="zz"))[:2] == (400, 10025)
        mismatch = await peer.api("CONSUMER.CREATE.S.e", {"stream_name": "T", "config": {}})
        assert refused(mismatch)[:2] == (400, 10056)
        told = await peer.api("CONSUMER.UNPIN.S.d", {"group": "A"})
        assert refused(told)[:2] == (400, 10160)


async def test_a_reset_delivers_anew_from_the_floor_or_a_sequence(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.consumer("S", "d")
        got = await peer.several(3, peer.pull("S", "d", b"3"))
        await peer.request(got[0].reply, b"+ACK")
        told = await peer.api("CONSUMER.RESET.S.d")
        assert (told["reset_seq"], told["num_pending"], told["num_ack_pending"]) == (2, 4, 0)
        assert told["delivered"] == {**told["delivered"], "consumer_seq": 0, "stream_seq": 1}
        told = await peer.api("CONSUMER.RESET.S.d", {"seq": 5})
        assert (told["reset_seq"], told["num_pending"]) == (5, 1)
        sid = peer.pull("S", "d", {"batch": 9, "no_wait": True})
        assert (await peer.next(sid)).payload == b"m4"
        assert (await peer.next(sid)).headers == NO_MESSAGES


async def test_a_reset_is_not_before_the_configured_start(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.consumer("S", "d", deliver_policy="by_start_sequence", opt_start_seq=3)
        told = await peer.api("CONSUMER.RESET.S.d", {"seq": 2})
        assert refused(told) == (400, 10204, "invalid reset: sequence 2 is before 3")
        assert (await peer.api("CONSUMER.RESET.S.d", {"seq": 4}))["reset_seq"] == 4
