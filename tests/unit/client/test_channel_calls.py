"""Conversations with the channel API, without a wire."""

import pytest

from penstock.client import (
    BrokerRefused,
    BrokerReply,
    BrokerRequest,
    Conversation,
    call_as_consumer,
    get_record,
    list_records,
    put_record,
)


def spoken(
    conversation: Conversation[object], *replies: BrokerReply
) -> tuple[list[BrokerRequest], object]:
    """The requests of a conversation, and its result."""
    requests = [next(conversation)]
    for reply in replies:
        try:
            requests.append(conversation.send(reply))
        except StopIteration as end:
            return requests, end.value
    raise AssertionError("the conversation has not ended")


def test_a_change_keeps_other_fields_and_names_the_version_it_replaces() -> None:
    known = BrokerReply(200, b'{"Name":"Old","Token":"t"}', {"etag": '"7"'})
    call = put_record(("producer", "a/b"), {"name": "New"})
    (first, second), made = spoken(call, known, BrokerReply(200, b'{"ID":"a/b"}'))
    assert (first.method, first.path) == ("GET", "/producer/a%2Fb")
    assert (second.method, second.body) == ("PUT", b"name=New&token=t")
    assert second.headers == (("If-Match", '"7"'),)
    assert made == {"ID": "a/b"}


def test_a_new_record_is_named_after_its_id() -> None:
    call = put_record(("producer", "p"), {"token": "t"})
    (_, put), _ = spoken(
        call, BrokerReply(404, b"Request resource not found"), BrokerReply(200, b"{}")
    )
    assert (put.body, put.headers) == (b"name=p&token=t", ())


def test_all_pages_of_a_list_are_read() -> None:
    pages = [
        BrokerReply(200, b'{"Result":["/a","/b"],"Pages":{"next":"/x?next=1"}}'),
        BrokerReply(200, b'{"Result":["/c"],"Pages":{"next":"/x?next=2"}}'),
        BrokerReply(200, b'{"Result":[],"Pages":{}}'),
    ]
    requests, found = spoken(list_records("x"), *pages)
    assert found == ["/a", "/b", "/c"]
    assert [request.path for request in requests] == ["/x", "/x?next=1", "/x?next=2"]


def test_tokens_are_read_before_the_request_that_needs_them() -> None:
    call = call_as_consumer("c", "k", "POST", "claim", query={"limit": "2"})
    replies = (
        BrokerReply(200, b'{"Token":"ct"}'),
        BrokerReply(200, b'{"Token":"kt"}'),
        BrokerReply(202, b""),
    )
    (*_, last), answer = spoken(call, *replies)
    assert last.path == "/channel/c/consumer/k/claim?limit=2"
    assert last.headers == (("X-Broker-Channel-Token", "ct"), ("X-Broker-Consumer-Token", "kt"))
    assert answer == {}


def test_an_error_has_the_broker_s_message() -> None:
    with pytest.raises(BrokerRefused, match="Request resource not found"):
        spoken(get_record("x"), BrokerReply(404, b"Request resource not found"))
    with pytest.raises(BrokerRefused, match="not JSON"):
        spoken(get_record("x"), BrokerReply(200, b"<html>"))
