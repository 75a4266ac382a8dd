"""Hostile values in every numeric and JSON input of the NATS protocol.

Whatever a client sends, it gets an answer or loses its own connection; nothing raises out of the
handlers, and other clients are served as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import msgspec
import pytest
import pytest_asyncio

from penstock.protocols.nats.greeting import Options
from penstock.wire.jetstream import requests
from penstock.wire.jetstream.consumer_config import ConsumerConfig, CreateRequest
from penstock.wire.jetstream.stream_config import (
    ConsumerLimits,
    Placement,
    RePublish,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from tests.broker.jetstream import API
from tests.broker.nats import WAIT_SECONDS
from tests.broker.storage import World
from tests.unit.protocols.nats.hostile import BODIES, DIGITS, TEXTS, VALUES, Watched, watching

ENDPOINTS: Final = (
    "INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.CREATE.S",
    "STREAM.UPDATE.S",
    "STREAM.INFO.S",
    "STREAM.PURGE.S",
    "STREAM.MSG.GET.S",
    "STREAM.MSG.DELETE.S",
    "STREAM.DELETE.none",
    "CONSUMER.CREATE.S",
    "CONSUMER.NAMES.S",
    "CONSUMER.LIST.S",
    "CONSUMER.CREATE.S.d",
    "CONSUMER.DURABLE.CREATE.S.d",
    "CONSUMER.INFO.S.d",
    "CONSUMER.PAUSE.S.d",
    "CONSUMER.RESET.S.d",
    "CONSUMER.VIEW.S.d",
    "CONSUMER.UNPIN.S.d",
    "CONSUMER.DELETE.S.none",
    "DIRECT.GET.S",
    "DIRECT.GET.S.S.1",
)
DOCUMENTS: Final[tuple[tuple[str, type[msgspec.Struct]], ...]] = (
    ("STREAM.INFO.S", requests.StreamInfoRequest),
    ("STREAM.NAMES", requests.PageRequest),
    ("STREAM.LIST", requests.PageRequest),
    ("CONSUMER.NAMES.S", requests.PageRequest),
    ("CONSUMER.LIST.S", requests.PageRequest),
    ("STREAM.PURGE.S", requests.PurgeRequest),
    ("STREAM.MSG.GET.S", requests.MessageGet),
    ("STREAM.MSG.DELETE.S", requests.MessageDelete),
    ("CONSUMER.PAUSE.S.d", requests.PauseRequest),
    ("CONSUMER.RESET.S.d", requests.ResetRequest),
    ("CONSUMER.UNPIN.S.d", requests.UnpinRequest),
    ("DIRECT.GET.S", requests.DirectGet),
    ("CONSUMER.CREATE.S.f", CreateRequest),
)
NESTED: Final[tuple[tuple[bytes, type[msgspec.Struct]], ...]] = (
    (b"%b", StreamConfig),
    (b'"placement":{%b}', Placement),
    (b'"mirror":{"name":"S",%b}', StreamSource),
    (b'"sources":[{"name":"S",%b}]', StreamSource),
    (b'"sources":[{"name":"S","subject_transforms":[{%b}]}]', SubjectTransform),
    (b'"subject_transform":{"src":">","dest":"x.>",%b}', SubjectTransform),
    (b'"republish":{"src":">","dest":"x.>",%b}', RePublish),
    (b'"consumer_limits":{%b}', ConsumerLimits),
)
"""Documents within a stream's configuration."""
HEADERS: Final = (
    b"Nats-TTL",
    b"Nats-Msg-Id",
    b"Nats-Expected-Stream",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
    b"Nats-Expected-Last-Subject-Sequence: 0\r\nNats-Expected-Last-Subject-Sequence-Subject",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-Rollup",
    b"Nats-Incr",
    b"Nats-Schedule-Target: ALL.t\r\nNats-Schedule",
    b"Nats-Schedule: @every 1h\r\nNats-Schedule-Target: ALL.t\r\nNats-Schedule-TTL",
    b"Nats-Schedule: @every 1h\r\nNats-Schedule-Target",
    b"Nats-Schedule: @every 1h\r\nNats-Schedule-Target: ALL.t\r\nNats-Schedule-Source",
    b"Nats-Schedule: @every 1h\r\nNats-Schedule-Target: ALL.t\r\nNats-Schedule-Rollup",
    b"Nats-Schedule: 0 0 5 * * *\r\nNats-Schedule-Target: ALL.t\r\nNats-Schedule-Time-Zone",
    b"Nats-Scheduler: ALL.s\r\nNats-Schedule-Next",
    b"Nats-Schedule-Next: purge\r\nNats-Scheduler",
    b"Nats-Stream-Source",
    b"Nats-Required-Api-Level",
    b"Nats-Batch-Sequence: 1\r\nNats-Batch-Commit: 1\r\nNats-Batch-Id",
    b"Nats-Batch-Id: b\r\nNats-Batch-Commit: 1\r\nNats-Batch-Sequence",
    b"Nats-Batch-Id: c\r\nNats-Batch-Sequence: 1\r\nNats-Batch-Commit",
)
"""Fields that say something to a stream, each behind what it needs to be looked at."""
NUMBERS: Final = (b"-1", b"0", b"1", b"x", b"", b"1.5", b"1e3", b"\xff", DIGITS[:18], DIGITS[:1900])
"""Tokens where a number is expected; a control line has 4096 bytes at most."""


@pytest_asyncio.fixture
async def watched(world: World, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Watched]:
    async with watching(world, caplog) as watched:
        yield watched


async def _consumer(watched: Watched, **config: object) -> None:
    """Create a stream S with messages and a consumer d."""
    kept = {"durable_name": "d", "ack_policy": "explicit", **config}
    body = msgspec.json.encode({"stream_name": "S", "config": kept})
    assert b"error" not in await watched.flood.api("CONSUMER.CREATE.S.d", body)
    for number in range(5):
        watched.flood.ask(b"S.%d" % number, b"x")
    await watched.flood.answered()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_every_request_is_answered_whatever_its_body_is(
    watched: Watched, endpoint: str
) -> None:
    await _consumer(watched)
    for body in BODIES:
        watched.flood.ask(API + endpoint.encode(), body)
        await watched.flood.answered()


@pytest.mark.parametrize(
    ("endpoint", "kind"), DOCUMENTS, ids=[endpoint for endpoint, _ in DOCUMENTS]
)
async def test_every_field_of_a_request_is_answered_whatever_its_value_is(
    watched: Watched, endpoint: str, kind: type[msgspec.Struct]
) -> None:
    await _consumer(watched)
    for field in kind.__struct_encode_fields__:
        for value in VALUES:
            watched.flood.ask(API + endpoint.encode(), b'{"%b":%b}' % (field.encode(), value))
        await watched.flood.answered()


@pytest.mark.parametrize(("within", "kind"), NESTED, ids=[within.decode() for within, _ in NESTED])
async def test_every_field_of_a_stream_is_answered_whatever_its_value_is(
    watched: Watched, within: bytes, kind: type[msgspec.Struct]
) -> None:
    flood = watched.flood
    for field in kind.__struct_encode_fields__:
        names = [b"F%d" % number for number in range(len(VALUES))]
        for name, value in zip(names, VALUES, strict=True):
            body = b'{"name":"%b",%b}' % (name, within % (b'"%b":%b' % (field.encode(), value)))
            flood.ask(API + b"STREAM.CREATE." + name, body)
            flood.ask(API + b"STREAM.UPDATE.S", body.replace(name, b"S", 1))
        await flood.answered()
        for name in names:
            flood.send(name, b"x")
            flood.ask(API + b"STREAM.INFO." + name, b'{"subjects_filter":">"}')
            flood.ask(API + b"CONSUMER.CREATE." + name, b'{"stream_name":"%b"}' % name)
        flood.ask(API + b"STREAM.LIST")
        await flood.answered()
        for name in names:
            flood.ask(API + b"STREAM.DELETE." + name)
        await flood.answered()


async def test_every_field_of_a_consumer_is_answered_whatever_its_value_is(
    watched: Watched,
) -> None:
    flood = watched.flood
    await _consumer(watched)
    for field in ConsumerConfig.__struct_encode_fields__:
        names = [b"c%d" % number for number in range(len(VALUES))]
        for name, value in zip(names, VALUES, strict=True):
            given = b'{"name":"%b","%b":%b}' % (name, field.encode(), value)
            body = b'{"stream_name":"S","config":%b}' % given
            flood.ask(API + b"CONSUMER.CREATE.S." + name, body)
            flood.ask(API + b"CONSUMER.CREATE.S.d", body.replace(name, b"d", 1))
        await flood.answered()
        for name in names:
            flood.send(API + b"CONSUMER.MSG.NEXT.S." + name, b'{"no_wait":true}', b"", b"_I")
            flood.ask(API + b"CONSUMER.INFO.S." + name)
        flood.ask(API + b"CONSUMER.LIST.S")
        await flood.answered()
        for name in names:
            flood.ask(API + b"CONSUMER.DELETE.S." + name)
        await flood.answered()


async def test_every_field_of_a_pull_may_have_any_value(watched: Watched) -> None:
    await _consumer(watched)
    for field in requests.NextRequest.__struct_encode_fields__:
        for value in (*VALUES, *BODIES):
            body = b'{"%b":%b,"no_wait":true}' % (field.encode(), value)
            for asked in (body, value):
                watched.flood.send(API + b"CONSUMER.MSG.NEXT.S.d", asked, b"", b"_I")
        await watched.flood.api("CONSUMER.INFO.S.d", b"")


async def test_acknowledgements_may_say_anything(watched: Watched) -> None:
    await _consumer(watched, ack_wait=1_000_000, max_deliver=-1)
    flood = watched.flood
    said = [b'-NAK {"delay":%b}' % value for value in VALUES]
    said += [b"-NAK " + text for text in TEXTS]
    said += [b"+NXT " + body for body in (*BODIES, *TEXTS)]
    said += [b'+NXT {"batch":%b}' % value for value in VALUES]
    said += [b"+TERM \xff", b"+WPI" + DIGITS, b"-", b"+NXT", b"-NAK", b"\x00" * 100]
    for payload in said:
        flood.send(API + b"CONSUMER.MSG.NEXT.S.d", b'{"no_wait":true}', b"", b"_I")
        for number in range(1, 6):
            subject = b"$JS.ACK.S.d.1.%d.%d.1.0" % (number, number)
            flood.send(subject, payload, b"", b"_I")
        await flood.api("CONSUMER.INFO.S.d", b"")
    await watched.undisturbed()


async def test_forged_acknowledgements_settle_nothing(watched: Watched) -> None:
    await _consumer(watched)
    flood = watched.flood
    flood.send(API + b"CONSUMER.MSG.NEXT.S.d", b'{"batch":3,"no_wait":true}', b"", b"_I")
    for place in range(9):
        for number in NUMBERS:
            tokens = [b"S", b"d", b"1", b"9", b"9", b"1", b"0"]
            tokens[min(place, 6)] = number
            if tokens[3] == b"1":  # No forgery: who may publish may acknowledge what is delivered.
                continue
            for subject in (tokens, tokens[:place], [*tokens, number]):
                for payload in (b"", b"+ACK", b"-NAK", b"+TERM", b"+WPI"):
                    flood.send(b".".join([b"$JS.ACK", *subject]), payload, b"", b"_I")
    info = msgspec.json.decode(await flood.api("CONSUMER.INFO.S.d", b""))
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (3, 0)


@pytest.mark.parametrize("stream", [b"S", b"ALL", b"COUNT"])
@pytest.mark.parametrize("field", HEADERS, ids=[field.decode() for field in HEADERS])
async def test_every_header_field_of_a_publish_is_answered_whatever_its_value_is(
    watched: Watched, stream: bytes, field: bytes
) -> None:
    flood = watched.flood
    for text in TEXTS:
        block = b"NATS/1.0\r\n%b: %b\r\n\r\n" % (field, text)
        flood.ask(stream + b".a", b"", block)
        await flood.answered()
        flood.ask(API + b"STREAM.INFO." + stream, b"", block)
    await flood.answered()


async def test_reply_subjects_of_fast_batches_may_have_any_numbers(watched: Watched) -> None:
    for place in range(6):
        for number in NUMBERS:
            tokens = [b"b", b"10", b"ok", b"1", b"0", b"$FI"]
            tokens[place] = number
            watched.flood.send(b"ALL.f", b"x", b"", b".".join([b"_I", *tokens]))
    await watched.flood.api("STREAM.INFO.ALL", b"")


async def test_the_options_of_connect_may_have_any_value(watched: Watched) -> None:
    lines = [b"CONNECT " + body for body in BODIES if b"\n" not in body]
    for field in (*Options.__struct_encode_fields__, "lang", "nkey", "jwt", "sig"):
        lines += [b'CONNECT {"%b":%b}' % (field.encode(), value) for value in VALUES]
    await _each_alone(watched, lines)


async def test_the_numbers_of_operations_may_be_anything(watched: Watched) -> None:
    numbers = (*NUMBERS, b"-0", b"+1", b"0x10", b"999999999", b"9999999999", "\u0663".encode())
    lines = [
        operation % number
        for number in numbers
        for operation in (
            b"PUB a %b",
            b"PUB a b %b\r\n",
            b"HPUB a %b 5",
            b"HPUB a 5 %b",
            b"HPUB a b %b 12\r\nNATS/1.0\r\n\r\n",
            b"SUB a %b",
            b"SUB %b 1",
            b"SUB a q %b",
            b"UNSUB %b",
            b"SUB a 1\r\nUNSUB 1 %b\r\nPUB a 1\r\nx",
            b"%b",
        )
    ]
    await _each_alone(watched, lines)


async def _each_alone(watched: Watched, lines: list[bytes]) -> None:
    """Send each input over its own connection, which is answered or closed."""
    for line in lines:
        talk = await watched.made.server.open()
        talk.send(line, b"\r\nPING\r\n")
        talk.writer.write_eof()
        async with asyncio.timeout(WAIT_SECONDS):
            with suppress(ConnectionError):
                await talk.reader.read()
        await talk.end()
    await watched.undisturbed()
