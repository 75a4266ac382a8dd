"""Plays the broker in a conversation: replies by number, requests kept for a look."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from penstock.client.exchange import Conversation, Reply, Request

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


def reply(body: Any, status: int = 200) -> Reply:
    return Reply(status, body if isinstance(body, bytes) else msgspec.json.encode(body))


def play(conversation: Conversation[_T], *replies: Reply) -> tuple[_T, list[Request]]:
    """What the conversation came to, and what it asked."""
    asked = []
    answers = iter(replies)
    try:
        request = next(conversation)
        while True:
            asked.append(request)
            request = conversation.send(next(answers))
    except StopIteration as end:
        assert next(answers, None) is None, "not every reply was asked for"
        return end.value, asked
