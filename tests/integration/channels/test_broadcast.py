"""Broadcasts: their tokens, what is stored of a message, and scheduled messages."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.channels.api import Answer, Api, Channel, Receiver, eventually, moment

pytestmark = pytest.mark.feature("C03")


def test_the_reply_to_a_broadcast_has_the_location_of_the_message(channel: Channel) -> None:
    location = channel.sent('{"a":1}', Content_Type="application/json", X_Broker_Message_ID="m-1")
    assert location == f"{channel.path}/message/m-1"
    shown = channel.api.get(location).json
    assert shown.pop("ReceivedAt") == shown.pop("DispatchedAt")
    assert shown == {
        "ID": "m-1",
        "Payload": '{"a":1}',
        "ContentType": "application/json",
        "ProducedBy": f"{channel.id} producer",
        "Status": "DISPATCHED",
        "Jobs": [],
        "Headers": {},
    }


def test_tokens_are_checked_in_order(channel: Channel) -> None:
    def sent(path: str = channel.path, **headers: str) -> tuple[int, str]:
        return channel.api.request("POST", f"{path}/broadcast", "x", **headers).summary

    producer, tokens = f"{channel.id}-p", {"X_Broker_Channel_Token": "ct"}
    assert sent("/channel/none") == (404, "Request resource not found")
    assert sent() == (403, "channel token does not match")
    assert sent(X_Broker_Channel_Token="cT") == (403, "channel token does not match")
    assert sent(**tokens) == (401, "producer could not be found")
    assert sent(**tokens, X_Broker_Producer_ID="no") == (401, "producer could not be found")
    known = tokens | {"X_Broker_Producer_ID": producer}
    assert sent(**known) == (403, "producer token does not match")
    assert sent(**known, X_Broker_Producer_Token="x") == (403, "producer token does not match")
    assert sent(**known, X_Broker_Producer_Token="pt") == (201, "")


def test_an_empty_body_is_refused(channel: Channel) -> None:
    assert channel.broadcast(b"").summary == (400, "Necessary information missing for persistence")


def test_an_id_is_accepted_once(channel: Channel) -> None:
    consumer = channel.consumer("one")
    channel.sent("first", X_Broker_Message_ID="Ä same/id.")
    again = channel.broadcast("second", X_Broker_Message_ID="Ä same/id.")
    assert again.summary == (409, "duplicate message id for channel")
    assert consumer.payloads() == ["first"]
    generated = channel.sent("third")
    refused = channel.broadcast("fourth", X_Broker_Message_ID=generated.rpartition("/")[2])
    assert refused.status == 409
    other = Channel(channel.api, f"{channel.id}-2")
    assert other.sent("elsewhere", X_Broker_Message_ID="Ä same/id.")


def test_one_of_concurrent_broadcasts_with_the_same_id_is_accepted(channel: Channel) -> None:
    from concurrent.futures import ThreadPoolExecutor

    consumer = channel.consumer("one")
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda n: channel.broadcast(f"{n}", X_Broker_Message_ID="race"), range(8))
        )
    assert sorted(answer.status for answer in answers) == [201] + [409] * 7
    assert len(consumer.payloads()) == 1


def test_an_id_may_be_as_long_as_the_limit(channel: Channel) -> None:
    ids = ["x" * 254 + end for end in "ab"]
    for id_ in ids:
        location = channel.sent(id_, X_Broker_Message_ID=id_)
        assert channel.api.get(location).json["ID"] == id_
    assert channel.broadcast("x", X_Broker_Message_ID="x" * 256).status == 400


def test_omitted_headers_have_defaults(channel: Channel) -> None:
    consumer = channel.consumer("one")
    location = channel.sent(b"x")
    assert channel.api.get(location).json["ContentType"] == "application/octet-stream"
    assert channel.api.get(location).json["ID"] == location.rpartition("/")[2]
    assert consumer.queued()[0]["Priority"] == 0


@pytest.mark.parametrize(
    ("text", "priority"), [("7", 7), ("-3", 3), ("abc", 0), ("", 0), ("1.5", 0), ("+2", 2)]
)
def test_a_priority_is_a_distance_from_zero(channel: Channel, text: str, priority: int) -> None:
    consumer = channel.consumer("one")
    channel.sent("x", X_Broker_Message_Priority=text)
    assert consumer.queued()[0]["Priority"] == priority


def test_listed_headers_are_stored_but_never_secrets(channel: Channel, receiver: Receiver) -> None:
    consumer = channel.consumer("one")
    channel.consumer("pushed", receiver.url(), "push")
    location = channel.sent(
        "x",
        X_Broker_Metadata_Headers=(
            "X-Foo,traceparent,Missing,X-Broker-Channel-Token,X-Broker-Producer-Token,"
            "Authorization,Cookie"
        ),
        X_Foo="bår",
        traceparent="00-abc",
        X_Other="not listed",
        Authorization="Bearer secret",
        Cookie="secret",
    )
    expected = {"X-Foo": "bår", "traceparent": "00-abc"}
    assert channel.api.get(location).json["Headers"] == expected
    assert consumer.queued()[0]["Message"]["Headers"] == expected
    eventually(lambda: receiver.calls)
    (call,) = receiver.calls
    assert call.headers["x-broker-metadata-headers"] == "X-Foo,traceparent"
    assert call.headers["traceparent"] == "00-abc"
    assert "authorization" not in call.headers
    assert "x-broker-channel-token" not in call.headers


def test_a_payload_arrives_byte_by_byte(channel: Channel, receiver: Receiver) -> None:
    payload = bytes(range(256)) * 300
    channel.consumer("pushed", receiver.url(), "push")
    pulled = channel.consumer("pulled")
    location = channel.sent(payload)
    eventually(lambda: receiver.calls)
    assert receiver.calls[0].body == payload
    assert "\ufffd" in channel.api.get(location).json["Payload"]
    import base64

    (job,) = pulled.queued()
    assert base64.b64decode(job["Message"]["PayloadBase64"]) == payload


def test_too_large_a_body_is_refused(channel: Channel) -> None:
    answer = channel.api.request(
        "POST", f"{channel.path}/broadcast", None, Content_Length="99999999999"
    )
    assert answer.status in (403, 413)


@pytest.mark.feature("C04")
def test_each_consumer_has_one_job_and_later_consumers_have_none(channel: Channel) -> None:
    early = [channel.consumer(f"e{n}") for n in range(3)]
    channel.sent("before")
    late = channel.consumer("late")
    location = channel.sent("after")
    assert [consumer.payloads() for consumer in early] == [["before", "after"]] * 3
    assert late.payloads() == ["after"]
    assert channel.statuses(location) == ["QUEUED"] * 4


# -- messages for later


def in_seconds(seconds: float, zone: str = "Z") -> str:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + zone


def later(channel: Channel, when: str, payload: str = "later", **headers: str) -> Answer:
    return channel.broadcast(payload, X_Broker_Scheduled_For=when, **headers)


@pytest.mark.feature("C14")
def test_a_scheduled_message_is_sent_once_when_due(channel: Channel) -> None:
    consumer, begun = channel.consumer("one"), time.time()
    answer = later(
        channel,
        in_seconds(8),
        X_Broker_Message_ID="s-1",
        X_Broker_Message_Priority="3",
        X_Broker_Metadata_Headers="X-Foo",
        X_Foo="bar",
        Content_Type="text/plain",
    )
    path = f"{channel.path}/scheduled-message/s-1"
    assert (answer.summary, answer.headers["location"]) == ((201, ""), path)
    shown = channel.api.get(path).json
    due = shown.pop("dispatchSchedule")
    assert shown == {
        "contentType": "text/plain",
        "dispatchedAt": None,
        "headers": {"X-Foo": "bar"},
        "id": "s-1",
        "messageId": "s-1",
        "payload": "later",
        "priority": 3,
        "producedBy": f"{channel.id}-p",
        "status": "SCHEDULED",
    }
    status = channel.api.get(f"{channel.path}/messages-status").json
    assert status["next_scheduled_message_at"] == due
    assert status["counts"] == {
        "SCHEDULED_SCHEDULED": {
            "Count": 1,
            "Links": {"messages": f"{channel.path}/scheduled-messages?status=101"},
        }
    }
    assert consumer.queued() == []
    eventually(lambda: consumer.queued())
    assert time.time() - begun >= 7.9
    (job,) = consumer.queued()
    assert job["Priority"] == 3
    assert job["Message"] == {
        "MessageID": "s-1",
        "Payload": "later",
        "Headers": {"X-Foo": "bar"},
        "ContentType": "text/plain",
    }
    eventually(lambda: channel.api.get(path).json["status"] == "DISPATCHED")
    sent = channel.api.get(path).json
    assert sent["dispatchedAt"] is not None
    assert sent["payload"] == "later"
    status = channel.api.get(f"{channel.path}/messages-status").json
    assert "next_scheduled_message_at" not in status
    assert set(status["counts"]) == {"DISPATCHED", "SCHEDULED_DISPATCHED"}


@pytest.mark.feature("C14")
def test_invalid_times_are_refused(channel: Channel) -> None:
    bad = "invalid date format for X-Broker-Scheduled-For, expected ISO-8601/RFC3339 format"
    for text in ("tomorrow", "2026-01-01", "2026-13-01T00:00:00Z", "2099-01-01T00:00:00", ""):
        assert later(channel, text).summary == (400, bad)
    for text in (in_seconds(-5), in_seconds(0.2), "1999-01-01T00:00:00+02:00"):
        answer = later(channel, text)
        assert answer.status == 412
        assert answer.text.startswith("scheduled time must be at least")


@pytest.mark.feature("C14")
def test_an_id_is_accepted_once_for_sent_and_scheduled_messages(channel: Channel) -> None:
    duplicate = "duplicate scheduled message id for channel"
    assert later(channel, in_seconds(600), X_Broker_Message_ID="a").status == 201
    assert later(channel, in_seconds(600), X_Broker_Message_ID="a").summary == (409, duplicate)
    channel.sent("now", X_Broker_Message_ID="b")
    assert later(channel, in_seconds(600), X_Broker_Message_ID="b").summary == (409, duplicate)


@pytest.mark.feature("C14")
def test_scheduled_messages_are_listed_and_cancelled(channel: Channel) -> None:
    for number in range(27):
        later(channel, in_seconds(600), X_Broker_Message_ID=f"s{number:02}")
    page = channel.api.get(f"{channel.path}/scheduled-messages?status=101").json
    assert list(page) == ["result", "pages"]
    urls = [f"{channel.path}/scheduled-message/s{n:02}" for n in range(26, -1, -1)]
    assert page["result"] == urls[:25]
    assert "status=101" in page["pages"]["next"]
    assert channel.api.get(page["pages"]["next"]).json["result"] == urls[25:]
    assert channel.api.get(f"{channel.path}/scheduled-messages?status=102").json == {
        "result": [],
        "pages": {},
    }
    assert channel.api.get("/channel/none/scheduled-messages").status == 404
    assert channel.api.get(f"{channel.path}/scheduled-message/none").status == 404
    assert channel.api.request("DELETE", urls[0]).status == 403
    cancelled = channel.api.request("DELETE", urls[0], X_Broker_Channel_Token="ct")
    assert cancelled.summary == (204, "")
    assert channel.api.get(urls[0]).status == 404
    assert channel.api.request("DELETE", urls[0], X_Broker_Channel_Token="ct").status == 404


# -- what there is


@pytest.mark.feature("C24")
def test_messages_are_listed_newest_first_and_a_filter_stays_in_the_links(channel: Channel) -> None:
    for number in range(60):
        channel.sent("x", X_Broker_Message_ID=f"m{number:02}")
    urls = [f"{channel.path}/message/m{n:02}" for n in range(59, -1, -1)]
    path = f"{channel.path}/messages?status=102"
    pages = []
    for _ in range(4):
        page = channel.api.get(path).json
        pages.append(page["Result"])
        if page["Pages"]:
            assert "status=102" in page["Pages"]["next"]
            previous, path = page["Pages"]["previous"], page["Pages"]["next"]
    assert pages == [urls[:25], urls[25:50], urls[50:], []]
    assert channel.api.get(previous).json["Result"] == urls[25:50]
    assert channel.api.get(f"{channel.path}/messages").json["Result"] == urls[:25]
    assert channel.api.get(f"{channel.path}/messages?status=abc").json["Result"] == urls[:25]
    assert channel.api.get(f"{channel.path}/messages?status=101").json["Result"] == []
    both = f"{channel.path}/messages?status=101&status=102"
    assert channel.api.get(both).json["Result"] == urls[:25]
    assert channel.api.get("/channel/none/messages").status == 404


@pytest.mark.feature("C24")
def test_messages_are_counted_by_status(api: Api, channel: Channel) -> None:
    assert api.get(f"{channel.path}/messages-status").json == {"counts": {}}
    assert api.get("/channel/none/messages-status").summary == (200, '{"counts":{}}\n')
    for _ in range(3):
        channel.sent()
    assert api.get(f"{channel.path}/messages-status").json == {
        "counts": {
            "DISPATCHED": {
                "Count": 3,
                "Links": {"messages": f"{channel.path}/messages?status=102"},
            }
        }
    }


@pytest.mark.feature("C24")
def test_a_message_shows_its_jobs(channel: Channel) -> None:
    consumer = channel.consumer("one", "http://127.0.0.1:9/cb")
    location = channel.sent()
    (job,) = consumer.queued()
    consumer.move(job["ID"], "INFLIGHT", 60)
    shown = channel.api.get(location).json
    (only,) = shown["Jobs"]
    assert moment(only.pop("StatusChangedAt")) > moment(shown["ReceivedAt"])
    assert only == {
        "ListenerEndpoint": "http://127.0.0.1:9/cb",
        "ListenerName": "one",
        "Status": "INFLIGHT",
    }
    assert channel.api.get(f"{channel.path}/message/none").summary == (
        404,
        "Request resource not found",
    )
    assert channel.api.get("/channel/none/message/x").status == 404
