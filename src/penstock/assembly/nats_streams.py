"""Streams for a server that is only a NATS door: their storage, topics and consumers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from penstock.assembly.storage import Storage, progress_of
from penstock.config import Config
from penstock.doors.nats.jetstream import JetStream
from penstock.doors.nats.server import NatsDoor
from penstock.topics.topics import Topics


async def open_streams(
    stack: AsyncExitStack, door: NatsDoor, data: str, drain_seconds: float
) -> None:
    """Everything is closed by the stack: streams, then the door, then what they are kept in.

    In this order whoever waits for messages is told, and what was acknowledged is safe.
    """
    config = replace(Config(), data=data)
    storage = Storage(config)
    stack.push_async_callback(storage.close)
    await storage.open()
    host = storage.topic_host()
    topics = Topics(host)
    await topics.open()
    stack.push_async_callback(door.drain, drain_seconds)
    jetstream = JetStream(door, topics, host, progress_of(config, host))
    jetstream.open()
    stack.push_async_callback(jetstream.close)
