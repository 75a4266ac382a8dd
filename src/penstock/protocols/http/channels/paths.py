"""Addresses within the channel API, as its replies tell them."""

from urllib.parse import quote


def producer(id_: str) -> str:
    return f"/producer/{_segment(id_)}"


def channel(id_: str) -> str:
    return f"/channel/{_segment(id_)}"


def consumer(channel_id: str, id_: str) -> str:
    return f"{channel(channel_id)}/consumer/{_segment(id_)}"


def message(channel_id: str, id_: str) -> str:
    return f"{channel(channel_id)}/message/{_segment(id_)}"


def scheduled(channel_id: str, id_: str) -> str:
    return f"{channel(channel_id)}/scheduled-message/{_segment(id_)}"


def job(channel_id: str, consumer_id: str, id_: str) -> str:
    return f"{consumer(channel_id, consumer_id)}/job/{id_}"


def _segment(text: str) -> str:
    return quote(text, safe="$&+=:@")
