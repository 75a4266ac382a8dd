"""`penstock.nats` with nats-server and with Penstock."""

import ast
import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import penstock.nats
from penstock.nats import NatsClient, NatsRefused, NatsStatus, NatsTimeout, NatsUnreachable, Stored
from tests.conformance.nats.both import server
from tests.eventually import eventually
from tests.servers.nats import OURS, THEIRS, NatsServer

__all__ = ["server"]


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[NatsClient]:
    """A connected client, with an empty stream S of the subjects `s.>`."""
    async with await penstock.nats.connect(server.url) as connected:
        await connected.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        yield connected


@pytest.mark.feature("P14")
async def test_messages_are_published_fetched_and_acknowledged(client: NatsClient) -> None:
    stored = [await client.publish("s.a", b"%d" % number) for number in range(3)]
    assert stored == [Stored("S", 1), Stored("S", 2), Stored("S", 3)]
    subscription = await client.pull_subscribe("S", "d")
    (first,) = await subscription.fetch(1)
    rest = await subscription.fetch(5)
    assert [message.payload for message in [first, *rest]] == [b"0", b"1", b"2"]
    assert (first.subject, first.delivery.sequence, first.delivery.pending) == ("s.a", 1, 2)
    for message in [first, *rest]:
        await message.ack_confirmed()
    info = await client.api("CONSUMER.INFO.S.d")
    assert (info["num_ack_pending"], info["num_waiting"], info["num_pending"]) == (0, 0, 0)


@pytest.mark.feature("P14")
@pytest.mark.parametrize("batch", [1, 5])
async def test_a_fetch_waits_for_messages_that_are_published_later(
    client: NatsClient, batch: int
) -> None:
    subscription = await client.pull_subscribe("S", "d")
    fetching = asyncio.create_task(subscription.fetch(batch, 30))
    async with asyncio.timeout(30):
        while (await client.api("CONSUMER.INFO.S.d"))["num_waiting"] != 1:
            await asyncio.sleep(0.01)
    for number in range(batch):
        await client.publish("s.a", b"%d" % number)
    messages = await fetching
    assert [message.payload for message in messages] == [b"%d" % n for n in range(batch)]


@pytest.mark.feature("P14")
@pytest.mark.parametrize("batch", [1, 5])
async def test_a_fetch_without_messages_leaves_no_pull_request(
    client: NatsClient, batch: int
) -> None:
    subscription = await client.pull_subscribe("S", "d")
    with pytest.raises(NatsTimeout):
        await subscription.fetch(batch, 0.3)
    assert (await client.api("CONSUMER.INFO.S.d"))["num_waiting"] == 0


async def test_a_message_that_is_not_acknowledged_is_redelivered(client: NatsClient) -> None:
    await client.publish("s.a", b"again")
    subscription = await client.pull_subscribe("S", "d")
    (first,) = await subscription.fetch(1)
    await first.nak()
    (second,) = await subscription.fetch(1)
    await second.in_progress()
    await second.term("seen enough")
    assert (second.delivery.deliveries, second.payload) == (2, b"again")


async def test_a_refusal_of_the_server_is_an_error(client: NatsClient) -> None:
    with pytest.raises(NatsRefused, match="stream not found"):
        await client.pull_subscribe("NOPE", "d")
    with pytest.raises(NatsStatus, match="503"):
        await client.publish("nowhere", b"")
    wrong = {"Nats-Expected-Last-Sequence": "9"}
    with pytest.raises(NatsRefused, match="wrong last sequence: 0"):
        await client.publish("s.a", b"", wrong)


async def test_deleting_the_consumer_ends_the_fetch(client: NatsClient) -> None:
    subscription = await client.pull_subscribe("S", "d")
    fetching = asyncio.create_task(subscription.fetch(5, 30))
    async with asyncio.timeout(30):
        while (await client.api("CONSUMER.INFO.S.d"))["num_waiting"] != 1:
            await asyncio.sleep(0.01)
    await client.api("CONSUMER.DELETE.S.d")
    with pytest.raises(NatsStatus, match="409 Consumer Deleted"):
        await fetching


@pytest.mark.parametrize("program", [THEIRS, OURS])
async def test_the_url_has_the_credentials(tmp_path: Path, program: str) -> None:
    running = NatsServer(tmp_path, program, ["--user", "ada", "--pass", "l@ve"])
    running.start()
    try:
        url = running.url.replace("//", "//ada:l%40ve@")
        async with await penstock.nats.connect(url) as connected:
            await connected.flush()
        with pytest.raises(NatsUnreachable, match="Authorization Violation"):
            await penstock.nats.connect(running.url)
    finally:
        running.close()


async def test_the_example_of_the_documentation_works(
    server: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "nats.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (example,) = [text for text in examples if "import penstock" in text]
    text = example.replace("nats://127.0.0.1:4222", server.url)
    code = compile(text, "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = asyncio.create_task(eval(code, {}))
    printed = ""

    async def told() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return running.done() or bool(printed)

    await eventually(told)
    running.cancel()
    await asyncio.wait([running])
    assert (printed, running.cancelled()) == ("parcels.new b'a book' 1\n", True)
