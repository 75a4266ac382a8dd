"""Adds streams to a plain NATS server: storage, topics and consumers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from penstock.assembly.jetstream import open_jetstream
from penstock.assembly.storage import Storage, progress_of
from penstock.config import Config
from penstock.protocols.nats import NatsServer
from penstock.topics import Topics


async def open_streams(
    stack: AsyncExitStack, server: NatsServer, data: str, drain_seconds: float
) -> None:
    """Open streams for `server`; the stack closes streams first, then the server, then storage.

    In this order pending pull requests receive a status, and acknowledged messages are durable.
    """
    config = replace(Config(), data=data)
    storage = Storage(config)
    stack.push_async_callback(storage.close)
    await storage.open()
    host = storage.topic_host()
    topics = Topics(host)
    await topics.start()
    stack.push_async_callback(server.drain, drain_seconds)
    jetstream = open_jetstream(server, topics, host, progress_of(config, host), wait_for_first=True)
    stack.push_async_callback(jetstream.close)
    topics.unopened.open_in_background()
    stack.push_async_callback(topics.close)
