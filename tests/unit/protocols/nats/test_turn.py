"""The input of one client is handled in parts, so that others are served meanwhile."""

from __future__ import annotations

import re

import pytest

from penstock.protocols.nats import NatsLimits
from tests.broker.nats import NatsSite, connection_of
from tests.eventually import eventually


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"PUB s.0 1\r\nx\r\n", id="of one subject"),
        pytest.param(b"PUB s.%d 1\r\nx\r\n", id="of many subjects"),
        pytest.param(b"PUB s.%d 1\r\nx\r\nPING\r\n", id="between other events"),
        pytest.param(b"PUB s.0 r 1\r\nx\r\n", id="with replies"),
    ],
)
async def test_messages_for_very_many_subscriptions_are_delivered_in_order_and_in_parts(
    line: bytes,
) -> None:
    async with NatsSite(NatsLimits(work_per_turn=50)) as opened:
        busy, other = await opened.connect(), await opened.connect()
        await busy.answer()
        await other.answer(*(b"SUB s.* %d\r\n" % number for number in range(20)))
        (client, receiver) = opened.server.clients.open.values()
        count = 30
        names = [line % number if b"%" in line else line for number in range(count)]
        connection_of(client).data_received(b"".join(names))
        assert 0 < receiver.out_messages < 100

        async def everything_is_delivered() -> bool:
            return receiver.out_messages == 20 * count

        await eventually(everything_is_delivered)
        lines = (await other.answer()).split(b"\r\n")
        assert client.in_messages == count
        subjects = [text.split()[1] for text in lines if text.startswith(b"MSG s.")]
        expected = [text.split()[1] for text in names for _ in range(20)]
        assert sorted(subjects) == sorted(expected)
        of_first = [text.split()[1] for text in lines if re.match(rb"MSG \S+ 0 ", text)]
        assert of_first == [text.split()[1] for text in names]


@pytest.mark.parametrize("run_length", [1, 100])
async def test_publishes_read_before_the_publisher_closed_are_delivered_in_full_and_in_order(
    run_length: int,
) -> None:
    """The server detects the closed connection by writing PONGs, while publishes are pending."""
    async with NatsSite(NatsLimits(work_per_turn=200)) as opened:
        publisher, subscriber = await opened.connect(), await opened.connect()
        await publisher.answer()
        await subscriber.answer(*(b"SUB s.* %d\r\n" % number for number in range(20)))
        (client, receiver) = opened.server.clients.open.values()
        count = 3000
        runs = [
            b"".join(b"PUB s.%d 1\r\nx\r\n" % number for number in range(first, first + run_length))
            for first in range(0, count, run_length)
        ]
        connection_of(client).data_received(b"".join(run + b"PING\r\n" for run in runs))
        assert receiver.out_messages < 1000
        publisher.writer.transport.abort()

        async def the_publisher_is_gone() -> bool:
            return list(opened.server.clients.open.values()) == [receiver]

        await eventually(the_publisher_is_gone)
        assert receiver.out_messages == 20 * count
        assert opened.server.clients.in_messages == client.in_messages == count
        subjects = re.findall(rb"MSG (\S+) 0 ", await subscriber.answer())
        assert subjects == [b"s.%d" % number for number in range(count)]
