"""Carries out a conversation with prepared replies and records its requests."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from penstock.client import BrokerReply, BrokerRequest, Conversation

_T = TypeVar("_T")

TOPIC: dict[str, Any] = {
    "name": "tenants/default/namespaces/default/topics/orders",
    "fields": [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "customer", "type": "string", "nullable": True},
    ],
    "partition_column": None,
    "durability": "fsync",
    "retention": {},
    "created": "2026-11-16T00:00:00Z",
}
RAW = {**TOPIC, "fields": None}


def reply(body: Any, status: int = 200) -> BrokerReply:
    return BrokerReply(status, body if isinstance(body, bytes) else msgspec.json.encode(body))


def play(conversation: Conversation[_T], *replies: BrokerReply) -> tuple[_T, list[BrokerRequest]]:
    """The result of the conversation, and its requests."""
    requests = []
    prepared = iter(replies)
    try:
        request = next(conversation)
        while True:
            requests.append(request)
            request = conversation.send(next(prepared))
    except StopIteration as end:
        assert next(prepared, None) is None, "the conversation did not read every reply"
        return end.value, requests
