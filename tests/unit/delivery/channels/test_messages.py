"""How messages of channels are stored, and how the cache reads them."""

import pyarrow as pa
import pytest

from penstock.delivery.channels.headers import HEADER_BYTES_MAX, HEADERS_MAX, ID_CHARACTERS_MAX
from penstock.delivery.channels.messages import (
    CACHED_BATCHES_MAX,
    JobMessage,
    MessageCache,
    NewMessage,
    job_keys,
    message_at,
    message_subject,
    parse_priority,
    priorities,
)
from penstock.formats import header_block
from penstock.ledger.job_states import PRIORITY_MAX, key_of
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.topics import OpenTopic
from tests.broker.storage import World
from tests.broker.topics import push, serve


def batch(headers: list[bytes | None] | None, first: int = 10) -> Batch:
    count = 3 if headers is None else len(headers)
    column = None if headers is None else pa.array(headers, pa.binary())
    payloads = pa.array([b"%d" % n for n in range(count)], pa.binary())
    columns = Columns(b"c", payloads, column)
    return Batch(PartitionId(0), Offset(first), count, Microseconds(99), columns)


def block(*pairs: tuple[str, str]) -> bytes:
    return header_block.encode(pairs)


def test_a_broadcast_message_is_restored_as_it_was_sent() -> None:
    sent = NewMessage("m 1", "p", 7, "text/plain", [("X-A", "ä"), ("b", "2")], b"hi")
    message = message_at(batch([sent.encode_headers()]), 0, 10)
    assert message == JobMessage(
        10, 99, "m 1", "p", 7, "text/plain", [("X-A", "ä"), ("b", "2")], b"0"
    )


def test_a_message_of_another_protocol_keeps_all_headers_except_reserved_ones() -> None:
    headers = block(
        ("Nats-Msg-Id", "n"),
        ("X-One", "1"),
        ("Host", "evil"),
        ("Content-Length", "9"),
        ("x-broker-consumer-token", "evil"),
        ("webhook-signature", "evil"),
    )
    message = message_at(batch([b"", headers, None]), 1, 11)
    assert message.headers == [("X-One", "1")]
    assert (message.id, message.producer, message.priority) == ("", "", 0)
    assert message.content_type == "application/octet-stream"


def raw_block(*lines: bytes) -> bytes:
    """A block as NATS clients may send it, whatever stands in its lines."""
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.parametrize(
    "line",
    [
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding\t: chunked",
        b" Transfer-Encoding: chunked",
        b"transfer-encoding: chunked",
        b"Content-Length: 5",
        b"CONNECTION: close",
        b"Host: internal",
        b"TE: trailers",
        b"Upgrade: h2c",
        b"HTTP2-Settings: x",
        b"Max-Forwards: 1",
        b"X Inner: 1",
        b"X(Comment): 1",
        b'X"Quoted": 1',
        b"X-\xc3\xa4: 1",
        b": no name",
        b"no colon",
        b"X-Break: a\nInjected: b",
        b"X-Break: a\rInjected: b",
        b"X-Null: a\x00b",
        b"X-Delete: \x7f",
    ],
)
def test_headers_that_http_cannot_carry_are_dropped_and_counted(line: bytes) -> None:
    message = message_at(batch([raw_block(b"X-Good: 1", line)]), 0, 10)
    assert message.headers == [("X-Good", "1")]
    assert message.dropped_headers == 1


def test_values_are_stripped() -> None:
    message = message_at(batch([raw_block(b"A:  1 \t", b"B:2", b"C:", b"D: x y\tz")]), 0, 10)
    assert message.headers == [("A", "1"), ("B", "2"), ("C", ""), ("D", "x y\tz")]
    assert message.dropped_headers == 0


def test_headers_of_the_broker_are_left_out_and_not_counted() -> None:
    headers = raw_block(b"Nats-Msg-Id: 1", b"X-Broker-Message-ID: m", b"Content-Type: a/b")
    message = message_at(batch([headers]), 0, 10)
    assert (message.headers, message.dropped_headers) == ([], 0)


def test_a_message_stored_beyond_the_limits_is_delivered_within_them() -> None:
    many = raw_block(*(b"X-%d: 1" % n for n in range(5000)))
    message = message_at(batch([many]), 0, 10)
    assert message.headers == [(f"X-{n}", "1") for n in range(HEADERS_MAX)]
    assert message.dropped_headers == 5000 - HEADERS_MAX
    large = raw_block(b"X-A: 1", b"X-B: " + b"x" * HEADER_BYTES_MAX, b"X-C: 1")
    message = message_at(batch([large]), 0, 10)
    assert (message.headers, message.dropped_headers) == ([("X-A", "1"), ("X-C", "1")], 1)


@pytest.mark.parametrize("id_", [b"x" * 256, b"a\nb", b"a\x00b"])
def test_an_id_that_http_cannot_carry_is_ignored(id_: bytes) -> None:
    assert message_at(batch([raw_block(b"X-Broker-Message-ID: " + id_)]), 0, 10).id == ""
    longest = "ä" * ID_CHARACTERS_MAX
    headers = raw_block(b"X-Broker-Message-ID: " + longest.encode())
    assert message_at(batch([headers]), 0, 10).id == longest


def test_a_content_type_that_http_cannot_carry_is_replaced_by_the_default() -> None:
    headers = raw_block(b"Content-Type: text/plain\nX: y")
    assert message_at(batch([headers]), 0, 10).content_type == "application/octet-stream"


def test_an_unlisted_header_is_left_out() -> None:
    headers = block(("X-Broker-Metadata-Headers", "X-One"), ("x-one", "1"), ("X-Two", "2"))
    assert message_at(batch([headers]), 0, 10).headers == [("x-one", "1")]


def test_a_row_of_a_typed_topic_is_json() -> None:
    rows = pa.record_batch({"id": [1, 2]})
    typed = Batch(PartitionId(0), Offset(0), 2, Microseconds(5), rows)
    message = message_at(typed, 1, 1)
    assert (message.payload, message.content_type) == (b'{"id":2}', "application/json")
    assert priorities(typed) == {}


def test_a_header_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(FormatError):
        NewMessage("a\r\nb", "p", 0, "x", [], b"x").encode_headers()
    with pytest.raises(FormatError):
        NewMessage("", "p", 0, "x", [("a b", "1")], b"x").encode_headers()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", 7), (" 7 ", 7), ("-7", 7), ("x", 0), ("", 0), ("9" * 30, PRIORITY_MAX), ("٣", 0)],
)
def test_priorities(text: str, expected: int) -> None:
    assert parse_priority(text) == expected


def test_priorities_are_found_by_offset() -> None:
    stored = batch(
        [
            b"",
            block(("X-Broker-Message-Priority", "3")),
            block(("x-broker-message-priority", "4")),
            block(("A", "X-Broker-Message-Priority")),
            None,
        ]
    )
    assert priorities(stored) == {11: 3, 12: 4}
    assert priorities(batch(None)) == {}
    assert job_keys(stored, {11: 3})[:2] == [key_of(0, 10), key_of(3, 11)]


def test_different_ids_have_different_subjects() -> None:
    ids = ["a", "A", "a b", "a.b", "a*", ">", "ä", "x" * 300, "x" * 301]
    subjects = {message_subject("c", id_) for id_ in ids}
    assert len(subjects) == len(ids)
    assert all(text.startswith(b"c.") and b" " not in text for text in subjects)
    assert message_subject("c", "") == b"c"


def count_reads(opened: OpenTopic, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets that are read from the log of a topic from now on."""
    reads: list[int] = []
    read = opened.log.read

    async def counted(partition: PartitionId, offset: Offset, bytes_max: int) -> object:
        reads.append(offset)
        return await read(partition, offset, bytes_max)

    monkeypatch.setattr(opened.log, "read", counted)
    return reads


async def test_neighbouring_messages_cost_one_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(world)
    opened = await served.create()
    await push(opened, *(b"%d" % n for n in range(100)))
    opened.log._tail.clear()
    cache, reads = MessageCache(opened), count_reads(opened, monkeypatch)
    for _ in range(3):
        found = [await cache.message(offset) for offset in range(100)]
        assert [message and message.payload for message in found] == [b"%d" % n for n in range(100)]
    assert len(reads) == 1


async def test_messages_in_the_tail_cache_cost_no_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(world)
    opened = await served.create()
    await push(opened, b"0", b"1")
    cache, reads = MessageCache(opened), count_reads(opened, monkeypatch)
    found = [await cache.message(offset) for offset in range(2)]
    assert [message and message.payload for message in found] == [b"0", b"1"]
    assert len(reads) == 0


async def test_a_deleted_message_is_not_returned_from_the_cache(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await push(opened, *(b"%d" % n for n in range(10)))
    cache = MessageCache(opened)
    assert await cache.message(5) is not None
    await opened.log.delete(PartitionId(0), [5])
    await opened.log.purge(PartitionId(0), Offset(3))
    assert [await cache.message(n) is None for n in (2, 3, 4, 5, 6, 10)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    fresh = MessageCache(opened)
    message = await fresh.message(6)
    assert message is not None
    assert message.payload == b"6"


@pytest.mark.parametrize("pushes", [1, 3 * CACHED_BATCHES_MAX])
async def test_messages_in_many_small_batches_are_found(world: World, pushes: int) -> None:
    served = await serve(world)
    opened = await served.create()
    for number in range(pushes):
        await push(opened, b"%d" % number)
    opened.log._tail.clear()
    cache = MessageCache(opened)
    for number in (0, pushes - 1, pushes // 2):
        message = await cache.message(number)
        assert message is not None
        assert message.payload == b"%d" % number
