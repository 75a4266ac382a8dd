"""Conversations with the channel API, without a wire."""

import pytest

from penstock.client import channel_calls
from penstock.client.exchange import BrokerRefused, Conversation, Reply, Request


def spoken(conversation: Conversation[object], *replies: Reply) -> tuple[list[Request], object]:
    """The requests of a conversation, and what it came to."""
    requests = [next(conversation)]
    for reply in replies:
        try:
            requests.append(conversation.send(reply))
        except StopIteration as end:
            return requests, end.value
    raise AssertionError("the conversation goes on")


def test_a_change_keeps_what_is_not_given_and_says_what_it_replaces() -> None:
    known = Reply(200, b'{"Name":"Old","Token":"t"}', {"etag": '"7"'})
    call = channel_calls.write(("producer", "a/b"), {"name": "New"})
    (first, second), made = spoken(call, known, Reply(200, b'{"ID":"a/b"}'))
    assert (first.method, first.path) == ("GET", "/producer/a%2Fb")
    assert (second.method, second.body) == ("PUT", b"name=New&token=t")
    assert second.headers == (("If-Match", '"7"'),)
    assert made == {"ID": "a/b"}


def test_a_new_record_is_named_after_itself() -> None:
    call = channel_calls.write(("producer", "p"), {"token": "t"})
    (_, put), _ = spoken(call, Reply(404, b"Request resource not found"), Reply(200, b"{}"))
    assert (put.body, put.headers) == (b"name=p&token=t", ())


def test_all_pages_of_a_list_are_read() -> None:
    pages = [
        Reply(200, b'{"Result":["/a","/b"],"Pages":{"next":"/x?next=1"}}'),
        Reply(200, b'{"Result":["/c"],"Pages":{"next":"/x?next=2"}}'),
        Reply(200, b'{"Result":[],"Pages":{}}'),
    ]
    requests, found = spoken(channel_calls.listed("x"), *pages)
    assert found == ["/a", "/b", "/c"]
    assert [request.path for request in requests] == ["/x", "/x?next=1", "/x?next=2"]


def test_tokens_are_read_before_they_are_needed() -> None:
    call = channel_calls.as_consumer("c", "k", "POST", "claim", query={"limit": "2"})
    replies = (Reply(200, b'{"Token":"ct"}'), Reply(200, b'{"Token":"kt"}'), Reply(202, b""))
    (*_, last), answer = spoken(call, *replies)
    assert last.path == "/channel/c/consumer/k/claim?limit=2"
    assert last.headers == (("X-Broker-Channel-Token", "ct"), ("X-Broker-Consumer-Token", "kt"))
    assert answer == {}


def test_the_words_of_the_broker_come_through() -> None:
    with pytest.raises(BrokerRefused, match="Request resource not found"):
        spoken(channel_calls.show("x"), Reply(404, b"Request resource not found"))
    with pytest.raises(BrokerRefused, match="not JSON"):
        spoken(channel_calls.show("x"), Reply(200, b"<html>"))
