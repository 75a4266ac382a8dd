from __future__ import annotations

import base64

import pytest

from penstock.model.times import time_text
from penstock.protocols.nats.jetstream.message_api import (
    requested_offset,
    start_offset,
    subject_filter,
)
from tests.broker.jetstream import Asker, Streaming


def test_a_text_that_no_subject_matches_is_no_filter() -> None:
    assert subject_filter("a..b") is None
    assert subject_filter("\ud800") is None
    found = subject_filter("a.*")
    assert found is not None
    assert found.matches(b"a.b")


async def _timed(streaming: Streaming) -> list[int]:
    """Store three messages, a millisecond apart; returns their times."""
    await streaming.asker.create("S", subjects=["s"])
    clock = streaming.served.broker.world.clock
    times: list[int] = []
    for payload in (b"a", b"b", b"c"):
        clock.us += 1000
        await streaming.asker.publish(b"s", payload)
        times.append((await streaming.stream("S").get(len(times))).timestamps[0])
    return times


async def test_a_time_means_the_first_message_that_is_not_older(streaming: Streaming) -> None:
    times = await _timed(streaming)
    assert times == sorted(set(times))
    stream = streaming.stream("S")
    second = times[1] * 1000
    assert await start_offset(stream, 0, time_text(second)) == 1
    assert await start_offset(stream, 0, time_text(second - 1)) == 1
    assert await start_offset(stream, 0, time_text(second + 1)) == 2
    assert await start_offset(stream, 0, time_text(times[2] * 1000 + 1)) == 3
    assert await start_offset(stream, 2, "") == 1
    assert await start_offset(stream, 0, "") == 0


@pytest.mark.parametrize(
    ("seq", "last_by", "next_by", "found"),
    [
        (2, "", "", 1),
        (99, "", "", 98),
        (0, "s", "", 2),
        (0, "x", "", None),
        (0, "a..b", "", None),
        (2, "", "s", 1),
        (4, "", "s", None),
        (0, "", "a..b", None),
    ],
)
async def test_the_message_that_is_meant(
    streaming: Streaming, seq: int, last_by: str, next_by: str, found: int | None
) -> None:
    await _timed(streaming)
    stream = streaming.stream("S")
    assert found == await requested_offset(
        stream, seq=seq, last_by=last_by, next_by=next_by, start_time=""
    )


BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"


async def _filled(asker: Asker) -> None:
    await asker.create("S", subjects=["s.>"])
    await asker.publish(b"s.a", b"one")
    await asker.publish(b"s.b", b"", headers=BLOCK)
    await asker.publish(b"s.a", b"three")


@pytest.mark.parametrize(
    ("body", "seq"),
    [
        ({"seq": 1}, 1),
        ({"last_by_subj": "s.a"}, 3),
        ({"last_by_subj": "s.*"}, 3),
        ({"next_by_subj": "s.b"}, 2),
        ({"seq": 2, "next_by_subj": "s.a"}, 3),
        ({"seq": 2, "next_by_subj": ">"}, 2),
        ({"start_time": "1970-01-01T00:00:00Z"}, 1),
        ({"start_time": "1970-01-01T00:00:00.0000001Z", "next_by_subj": "s.b"}, 2),
    ],
)
@pytest.mark.feature("P02")
async def test_a_message_is_found_by_sequence_subject_or_time(
    asker: Asker, body: dict[str, object], seq: int
) -> None:
    await _filled(asker)
    message = (await asker.api("STREAM.MSG.GET.S", body))["message"]
    assert message["seq"] == seq


async def test_a_message_get_returns_every_field(asker: Asker) -> None:
    await _filled(asker)
    told = await asker.api("STREAM.INFO.S")
    message = (await asker.api("STREAM.MSG.GET.S", {"seq": 1}))["message"]
    assert message == {
        "subject": "s.a",
        "seq": 1,
        "data": base64.b64encode(b"one").decode(),
        "time": told["state"]["first_ts"],
    }
    message = (await asker.api("STREAM.MSG.GET.S", {"seq": 2}))["message"]
    assert list(message) == ["subject", "seq", "hdrs", "time"]
    assert base64.b64decode(message["hdrs"]) == BLOCK
    message = (await asker.api("STREAM.MSG.GET.S", {"seq": 2, "no_hdr": True}))["message"]
    assert list(message) == ["subject", "seq", "time"]


@pytest.mark.parametrize(
    "body",
    [
        {"seq": 99},
        {"last_by_subj": "s.z"},
        {"last_by_subj": "a..b"},
        {"seq": 99, "next_by_subj": "s.>"},
        {"next_by_subj": "a..b"},
        {"start_time": "2100-01-01T00:00:00Z"},
    ],
)
async def test_missing_messages_are_not_found(asker: Asker, body: dict[str, object]) -> None:
    await _filled(asker)
    assert await asker.error("STREAM.MSG.GET.S", body) == (10037, "no message found")


async def test_a_deleted_message_stays_deleted(asker: Asker) -> None:
    await _filled(asker)
    told = await asker.api("STREAM.MSG.DELETE.S", {"seq": 3, "no_erase": True})
    assert told == {
        "type": "io.nats.jetstream.api.v1.stream_msg_delete_response",
        "success": True,
    }
    assert (await asker.error("STREAM.MSG.GET.S", {"seq": 3}))[0] == 10037
    assert (await asker.api("STREAM.MSG.GET.S", {"last_by_subj": "s.a"}))["message"]["seq"] == 1
    assert await asker.error("STREAM.MSG.DELETE.S", {"seq": 3}) == (10043, "sequence 3 not found")


async def test_purged_messages_are_not_found(asker: Asker) -> None:
    await _filled(asker)
    await asker.api("STREAM.PURGE.S", {"seq": 3})
    assert await asker.error("STREAM.MSG.DELETE.S", {"seq": 1}) == (10043, "sequence 1 not found")
    assert (await asker.error("STREAM.MSG.GET.S", {"seq": 1}))[0] == 10037
    assert (await asker.api("STREAM.MSG.GET.S", {"seq": 1, "next_by_subj": ">"}))["message"][
        "seq"
    ] == 3


async def test_unsupported_requests_are_refused(asker: Asker) -> None:
    await asker.create("S", subjects=["s"])
    await asker.create("D", subjects=["d"], deny_delete=True)
    await asker.publish(b"s", b"x")
    await asker.publish(b"d", b"x")
    assert await asker.error("STREAM.MSG.DELETE.S", {"seq": 9}) == (10057, "stream store EOF")
    assert await asker.error("STREAM.MSG.DELETE.D", {"seq": 1}) == (
        10057,
        "message delete not permitted",
    )
    await asker.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sealed": True})
    assert (await asker.error("STREAM.MSG.DELETE.S", {"seq": 1}))[0] == 10109
    for endpoint in ("STREAM.MSG.GET", "STREAM.MSG.DELETE"):
        assert (await asker.error(f"{endpoint}.S"))[0] == 10003
        assert (await asker.error(f"{endpoint}.none", {"seq": 1}))[0] == 10059


@pytest.mark.feature("G10")
async def test_a_message_that_is_only_in_the_bucket_is_got(streaming: Streaming) -> None:
    await _filled(streaming.asker)
    await streaming.only_in_bucket("S")
    message = (await streaming.asker.api("STREAM.MSG.GET.S", {"seq": 1}))["message"]
    assert base64.b64decode(message["data"]) == b"one"
