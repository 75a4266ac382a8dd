from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.protocols.nats.jetstream.stream_api import purge
from penstock.wire.jetstream.requests import PurgeRequest
from tests.broker.jetstream import Asker, Streaming

SUBJECTS = (b"s.a", b"s.b", b"s.a", b"s.c", b"s.a", b"s.b")


async def _filled(streaming: Streaming) -> None:
    await streaming.asker.create("S", subjects=["s.>"])
    for subject in SUBJECTS:
        await streaming.asker.publish(subject, b"x")


async def _left(streaming: Streaming) -> list[int]:
    stream = streaming.stream("S")
    return [offset + 1 for offset in range(stream.next_offset) if (await stream.get(offset)).count]


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        (PurgeRequest(), []),
        (PurgeRequest(seq=3), [3, 4, 5, 6]),
        (PurgeRequest(seq=1), [1, 2, 3, 4, 5, 6]),
        (PurgeRequest(seq=7), []),
        (PurgeRequest(keep=2), [5, 6]),
        (PurgeRequest(keep=6), [1, 2, 3, 4, 5, 6]),
        (PurgeRequest(keep=99), [1, 2, 3, 4, 5, 6]),
        (PurgeRequest(">", keep=1), [6]),
        (PurgeRequest("s.a"), [2, 4, 6]),
        (PurgeRequest("s.a", seq=5), [2, 4, 5, 6]),
        (PurgeRequest("s.a", keep=1), [2, 4, 5, 6]),
        (PurgeRequest("s.*", keep=1), [6]),
        (PurgeRequest("none"), [1, 2, 3, 4, 5, 6]),
        (PurgeRequest("a..b"), [1, 2, 3, 4, 5, 6]),
    ],
)
@pytest.mark.feature("P02")
async def test_a_purge_keeps_the_requested_messages(
    streaming: Streaming, asked: PurgeRequest, left: list[int]
) -> None:
    await _filled(streaming)
    assert await purge(streaming.stream("S"), asked) == len(SUBJECTS) - len(left)
    assert await _left(streaming) == left


@pytest.mark.parametrize(("keep", "left"), [(1, [6]), (2, [3, 6]), (3, [1, 3, 6])])
async def test_deleted_messages_do_not_count(
    streaming: Streaming, keep: int, left: list[int]
) -> None:
    await _filled(streaming)
    stream = streaming.stream("S")
    await stream.delete([1, 3, 4])
    assert await purge(stream, PurgeRequest(keep=keep)) == 3 - len(left)
    assert await _left(streaming) == left


async def test_many_messages_are_deleted_in_parts(streaming: Streaming) -> None:
    await _filled(streaming)
    assert await purge(streaming.stream("S"), PurgeRequest("s.a", seq=5), 1) == 2
    assert await _left(streaming) == [2, 4, 5, 6]
    assert await purge(streaming.stream("S"), PurgeRequest("s.*", keep=1), 1) == 3
    assert await _left(streaming) == [6]


@pytest.mark.feature("P02")
@pytest.mark.parametrize("seq", [99, 1 << 40, (1 << 63) - 1])
async def test_a_purge_beyond_the_last_sequence_sets_the_next_one(
    streaming: Streaming, seq: int
) -> None:
    await _filled(streaming)
    assert await streaming.asker.api("STREAM.PURGE.S", {"seq": seq}) == {
        "type": "io.nats.jetstream.api.v1.stream_purge_response",
        "success": True,
        "purged": len(SUBJECTS),
    }
    state = (await streaming.asker.api("STREAM.INFO.S", {"deleted_details": True}))["state"]
    assert (state["first_seq"], state["last_seq"], state["messages"]) == (seq, seq - 1, 0)
    assert "num_deleted" not in state
    assert await streaming.asker.publish(b"s.a", b"x") == seq


SECOND = 10**9
PLAIN = {
    "name": "S",
    "subjects": ["s.>"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120 * SECOND,
    "compression": "none",
    "allow_direct": False,
    "mirror_direct": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "consumer_limits": {},
    "allow_msg_ttl": False,
    "metadata": {"_nats.level": "5", "_nats.req.level": "0", "_nats.ver": "2.15.1"},
}
EMPTY = {
    "messages": 0,
    "bytes": 0,
    "first_seq": 0,
    "first_ts": "0001-01-01T00:00:00Z",
    "last_seq": 0,
    "last_ts": "0001-01-01T00:00:00Z",
    "consumer_count": 0,
}


@pytest.mark.feature("P02")
async def test_a_stream_is_made_and_described(asker: Asker) -> None:
    told = await asker.create("S", subjects=["s.>"])
    assert list(told) == ["type", "config", "created", "state", "ts", "did_create"]
    assert told["type"] == "io.nats.jetstream.api.v1.stream_create_response"
    assert (told["config"], told["state"]) == (PLAIN, EMPTY)


async def test_creating_it_again_changes_nothing(asker: Asker) -> None:
    first = await asker.create("S", subjects=["s.>"])
    again = await asker.create("S", subjects=["s.>"])
    assert again["created"] == first["created"]
    body = {"name": "S", "subjects": ["s.>"], "max_msgs": 5}
    assert await asker.error("STREAM.CREATE.S", body) == (
        10058,
        "stream name already in use with a different configuration",
    )


async def test_an_info_describes_the_server_and_the_stream(asker: Asker) -> None:
    await asker.create("S", subjects=["s.>"])
    await asker.publish(b"s.a", b"hello", b"world")
    told = await asker.api("STREAM.INFO.S")
    expected = ["type", "total", "offset", "limit", "config", "created", "state", "cluster", "ts"]
    assert list(told) == expected
    assert told["cluster"] == {"leader": "lab"}
    state = told["state"]
    assert state["first_ts"] == state["last_ts"] == told["created"]
    del state["first_ts"], state["last_ts"]
    assert state == {
        "messages": 2,
        "bytes": 2 * (22 + len("s.a") + len("hello") + 8),
        "first_seq": 1,
        "last_seq": 2,
        "num_subjects": 1,
        "consumer_count": 0,
    }


async def test_a_purged_stream_continues_its_sequences(asker: Asker) -> None:
    await asker.create("S", subjects=["s"])
    await asker.publish(b"s", b"a", b"b")
    assert (await asker.api("STREAM.PURGE.S"))["purged"] == 2
    state = (await asker.api("STREAM.INFO.S"))["state"]
    assert (state["messages"], state["bytes"]) == (0, 0)
    assert (state["first_seq"], state["last_seq"]) == (3, 2)
    assert state["first_ts"] == "0001-01-01T00:00:00Z"
    assert state["last_ts"] != "0001-01-01T00:00:00Z"
    assert await asker.publish(b"s", b"c") == 3


async def test_a_stream_may_start_at_any_sequence(asker: Asker) -> None:
    told = await asker.create("S", subjects=["s"], first_seq=100)
    state = {**EMPTY, "first_seq": 100, "last_seq": 99}
    assert told["state"] == state
    assert await asker.publish(b"s", b"x") == 100


async def test_an_info_shows_a_page_of_subjects(asker: Asker) -> None:
    await asker.create("S", subjects=["s.>"])
    for subject in (b"s.b", b"s.a", b"s.c", b"s.a"):
        await asker.publish(subject, b"x")
    told = await asker.api("STREAM.INFO.S", {"subjects_filter": ">"})
    assert (told["total"], told["offset"], told["limit"]) == (3, 0, 100_000)
    assert told["state"]["subjects"] == {"s.a": 2, "s.b": 1, "s.c": 1}
    told = await asker.api("STREAM.INFO.S", {"subjects_filter": "s.*", "offset": 2})
    assert (told["total"], told["offset"]) == (3, 2)
    assert told["state"]["subjects"] == {"s.c": 1}
    told = await asker.api("STREAM.INFO.S", {"subjects_filter": "other"})
    assert (told["total"], told["limit"]) == (0, 0)
    assert "subjects" not in told["state"]
    assert (await asker.api("STREAM.INFO.S", {"subjects_filter": "a..b"}))["total"] == 0


async def test_an_info_shows_deleted_sequences_on_request(asker: Asker) -> None:
    await asker.create("S", subjects=["s"])
    await asker.publish(b"s", b"1", b"2", b"3", b"4")
    for seq in (1, 3):
        assert (await asker.api("STREAM.MSG.DELETE.S", {"seq": seq}))["success"] is True
    state = (await asker.api("STREAM.INFO.S", {"deleted_details": True}))["state"]
    assert (state["num_deleted"], state["deleted"], state["first_seq"]) == (1, [3], 2)
    state = (await asker.api("STREAM.INFO.S"))["state"]
    assert state["num_deleted"] == 1
    assert "deleted" not in state


async def test_a_stream_is_changed(asker: Asker) -> None:
    await asker.create("S", subjects=["s.>"])
    await asker.publish(b"s.a", b"x")
    told = await asker.api(
        "STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>", "t"], "max_msgs": 10}
    )
    assert told["type"].endswith("stream_update_response")
    assert "did_create" not in told
    assert told["config"] == PLAIN | {"subjects": ["s.>", "t"], "max_msgs": 10}
    assert await asker.publish(b"t", b"y") == 2


REFUSED: list[tuple[str, bytes, int]] = [
    ("STREAM.CREATE.S", b"", 10056),
    ("STREAM.CREATE.S", b'{"name":"X"}', 10056),
    ("STREAM.CREATE.S", b'{"name":', 10025),
    ("STREAM.CREATE.S", b'{"name":"S","foo":1}', 10025),
    ("STREAM.CREATE.N", b'{"name":"N","subjects":["s.a"]}', 10065),
    ("STREAM.CREATE.N", b'{"name":"N","subjects":["a..b"]}', 10052),
    ("STREAM.CREATE.N", b'{"name":"N","num_replicas":3}', 10074),
    ("STREAM.CREATE.N", b'{"name":"N","sealed":true}', 10052),
    ("STREAM.UPDATE.N", b'{"name":"N","subjects":["z"]}', 10059),
    ("STREAM.UPDATE.S", b'{"name":"S","subjects":["s.>"],"storage":"memory"}', 10052),
    ("STREAM.UPDATE.S", b'{"name":"S","subjects":["other"]}', 10065),
    ("STREAM.INFO.N", b"", 10059),
    ("STREAM.INFO.S", b'{"foo":1}', 10025),
    ("STREAM.DELETE.N", b"", 10059),
    ("STREAM.DELETE.S", b"x", 10038),
    ("STREAM.PURGE.N", b"", 10059),
    ("STREAM.PURGE.S", b'{"seq":1,"keep":1}', 10003),
    ("STREAM.NAMES", b'{"foo":1}', 10025),
    ("STREAM.LIST", b'{"foo":1}', 10025),
]


async def test_unsupported_requests_are_refused(asker: Asker) -> None:
    await asker.create("S", subjects=["s.>"])
    await asker.create("O", subjects=["other"])
    refused = [(await asker.error(endpoint, body))[0] for endpoint, body, _ in REFUSED]
    assert refused == [number for _, _, number in REFUSED]
    total, failed = len(REFUSED) + 3, len(REFUSED)
    assert (await asker.api("INFO"))["api"] == {"level": 5, "total": total, "errors": failed}


async def test_names_and_infos_are_listed_in_order(asker: Asker) -> None:
    assert (await asker.api("STREAM.NAMES"))["streams"] is None
    assert (await asker.api("STREAM.LIST"))["streams"] == []
    for name in ("b", "a", "c"):
        await asker.create(name, subjects=[f"{name}.>"])
    told = await asker.api("STREAM.NAMES")
    assert (told["total"], told["offset"], told["limit"]) == (3, 0, 1024)
    assert told["streams"] == ["a", "b", "c"]
    assert (await asker.api("STREAM.NAMES", {"offset": 1}))["streams"] == ["b", "c"]
    assert (await asker.api("STREAM.NAMES", {"subject": "b.x"}))["streams"] == ["b"]
    assert (await asker.api("STREAM.NAMES", {"subject": "none"}))["streams"] is None
    told = await asker.api("STREAM.LIST", {"offset": 2})
    assert (told["total"], told["offset"], told["limit"]) == (3, 2, 256)
    (info,) = told["streams"]
    assert list(info) == ["config", "created", "state", "ts"]
    assert info["config"]["metadata"] == {"_nats.req.level": "0"}
    assert (await asker.api("STREAM.LIST", {"subject": "a.*"}))["total"] == 1


async def test_a_deleted_stream_can_be_created_again(asker: Asker) -> None:
    await asker.create("S", subjects=["s"])
    await asker.publish(b"s", b"x")
    assert (await asker.api("STREAM.DELETE.S"))["success"] is True
    assert (await asker.api("STREAM.NAMES"))["total"] == 0
    assert (await asker.ask(b"s", b"x")).headers.startswith(b"NATS/1.0 503")
    assert (await asker.create("S", subjects=["s"]))["state"] == EMPTY


async def test_the_account_info_counts_streams_and_consumers(asker: Asker) -> None:
    await asker.create("F", subjects=["f"])
    await asker.create("M", subjects=["m"], storage="memory")
    await asker.publish(b"f", b"hello")
    await asker.publish(b"m", b"hello")
    told = await asker.api("INFO")
    assert (told["streams"], told["consumers"]) == (2, 0)
    assert (told["storage"], told["memory"]) == (22 + 1 + 5 + 8, 16 + 1 + 5)


async def test_a_sealed_stream_and_one_with_deny_purge_are_not_purged(asker: Asker) -> None:
    await asker.create("S", subjects=["s"])
    sealed = await asker.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sealed": True})
    assert sealed["config"]["deny_purge"] is True
    told = await asker.ask(b"$JS.API.STREAM.PURGE.S")
    assert msgspec.json.decode(told.payload) == {
        "type": "io.nats.jetstream.api.v1.stream_purge_response",
        "error": {
            "code": 400,
            "err_code": 10109,
            "description": "invalid operation on sealed stream",
        },
        "purged": 0,
    }
    await asker.create("D", subjects=["d"], deny_purge=True)
    assert await asker.error("STREAM.PURGE.D") == (10110, "stream purge not permitted")


@pytest.mark.parametrize(
    ("origin_allows", "asked", "told"),
    [(True, None, True), (True, False, True), (False, None, False), (False, True, False)],
)
async def test_a_mirror_answers_directly_as_its_origin_does(
    asker: Asker, origin_allows: bool, asked: bool | None, told: bool
) -> None:
    await asker.create("O", subjects=["o"], allow_direct=origin_allows)
    config: dict[str, Any] = {} if asked is None else {"mirror_direct": asked}
    made = await asker.create("M", mirror={"name": "O"}, **config)
    assert made["config"]["mirror_direct"] is told
    assert made["mirror"]["name"] == "O"
    number, _ = await asker.error(
        "STREAM.CREATE.P",
        {
            "name": "P",
            "mirror": {"name": "O"},
            "mirror_direct": not origin_allows,
            "pedantic": True,
        },
    )
    assert number == 10157


async def test_a_mirror_without_an_origin_shows_an_error(asker: Asker) -> None:
    made = await asker.create("M", mirror={"name": "none", "filter_subject": "x"})
    assert made["mirror"] == {
        "name": "none",
        "lag": 0,
        "active": -1,
        "error": {"code": 404, "err_code": 10059, "description": "stream not found"},
        "filter_subject": "x",
    }


@pytest.mark.feature("G01")
async def test_direct_gets_are_allowed_when_subjects_are_limited(asker: Asker) -> None:
    for name, config, allowed in (
        ("a", {"max_msgs_per_subject": 1}, True),
        ("b", {"max_msgs_per_subject": 1, "allow_direct": False}, False),
        ("c", {"allow_direct": True}, True),
        ("d", {}, False),
    ):
        assert (await asker.create(name, **config))["config"]["allow_direct"] is allowed


async def test_a_partition_is_a_stream_that_is_only_read(streaming: Streaming) -> None:
    from tests.broker.topics import BY_REGION, region

    opened = await streaming.served.create(BY_REGION)
    await opened.partitions.ensure([region("eu")])
    asker = streaming.asker
    assert (await asker.api("STREAM.INFO.regions--0"))["config"]["sealed"] is True
    assert (await asker.error("STREAM.PURGE.regions--0"))[0] == 10109
    assert (await asker.error("STREAM.DELETE.regions--0"))[0] == 10059
    assert (await asker.error("STREAM.INFO.regions--1"))[0] == 10059


async def test_a_sequence_beyond_the_range_of_offsets_is_refused(asker: Asker) -> None:
    config = {"name": "a", "first_seq": 1 << 63}
    code, sentence = await asker.error("STREAM.CREATE.a", config)
    assert (code, "first_seq" in sentence) == (10025, True)
    await asker.create("a", first_seq=(1 << 63) - 1)
    assert (await asker.error("STREAM.PURGE.a", {"seq": 1 << 63}))[0] == 10025
