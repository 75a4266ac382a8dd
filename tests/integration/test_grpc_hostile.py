"""Every gRPC call with input that no client of ours sends: a proper status, and nothing breaks."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa
import pytest
import pytest_asyncio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from penstock.formats.rpc import METHODS
from penstock.host.clock import Clock
from penstock.metadata.remote.values import to_time
from penstock.model import schema
from penstock.model.units import Microseconds
from tests.eventually import WAIT_SECONDS, eventually
from tests.integration.process import FREE_PORT, Broker

Code = grpc.StatusCode
PROPER: Final = {
    *(Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS),
    *(Code.FAILED_PRECONDITION, Code.OUT_OF_RANGE, Code.RESOURCE_EXHAUSTED),
}
RECEIVE_BYTES_MAX: Final = 4 << 20
"""gRPC's own limit of a message."""
CALLS_AT_ONCE: Final = 50
POLLS: Final = 3000
SPACE: Final = "tenants/default/namespaces/default"
TOPIC: Final = f"{SPACE}/topics/raw"
PLACES: Final = f"{SPACE}/topics/places"
COLUMNS: Final = schema.schema([schema.field("place:binary"), schema.field("n:int64?")])

STRINGS: Final = [
    *("", "/", "..", "../..", "tenants/../x", "a/b/c/d/e/f/g", f"{TOPIC}/", "//", "a//b"),
    *("nul\0nul", "\n", "\x7f", "*", ">", ".", "ü", "𝄞", "\ufffe", "%s%n", "-1", "9" * 5000),
    *("9" * 4000, "x" * 300, "x" * 100_000, "/" * 1_000_000, "\0" * 1_000_000, "x" * (5 << 20)),
]
SMALL: Final = [0, 1, -1, 2**31 - 1, -(2**31)]
LARGE: Final = [*SMALL, 2**31, 2**63 - 1, -(2**63)]
VALUES: Final[dict[int, list[Any]]] = {
    FieldDescriptor.TYPE_STRING: STRINGS,
    FieldDescriptor.TYPE_BYTES: [b"", b"\0", b"\xff" * 100, b"x" * 3_000_000, b"x" * (5 << 20)],
    FieldDescriptor.TYPE_INT32: SMALL,
    FieldDescriptor.TYPE_INT64: LARGE,
    FieldDescriptor.TYPE_UINT32: [0, 1, 2**32 - 1],
    FieldDescriptor.TYPE_UINT64: [0, 1, 2**64 - 1],
    FieldDescriptor.TYPE_DOUBLE: [
        0.0,
        -1.0,
        1e308,
        float("inf"),
        float("-inf"),
        float("nan"),
        5e-324,
    ],
    FieldDescriptor.TYPE_BOOL: [False, True],
}
RAW: Final = [
    b"\xff" * 20,
    b"\x00",
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\x0b" * 5000,
    b"\x0a\x02\xc3\x28",
    b"\x12\x02\xff\xfe",
    b"\x1a\x02\xff\xfe",
    b"\x0a\x03\xed\xa0\x80",
    b"\x08" + b"\xff" * 9 + b"\x7f",
    b"\xfa\xff\xff\xff\x0f\x03abc",
    b"\x0d\x00\x00\x00\x00" * 100,
    b"\x12\x7f" * 1000,
]
"""Bytes that are no message, or one with fields that nobody knows."""
_numbers = itertools.count()


def _hostile(kind: Any) -> Iterator[dict[str, Any]]:
    """Requests in which one field, however deep, has a hostile value."""
    for field in kind.fields:
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            yield from ({field.name: value} for value in VALUES[field.type])
        else:
            yield {field.name: {}}
            yield from ({field.name: inner} for inner in _hostile(field.message_type))


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        nested = isinstance(value, dict) and isinstance(base.get(name), dict)
        merged[name] = _merged(base[name], value) if nested else value
    return merged


def _valid(name: str) -> dict[str, Any]:
    """A request that is accepted, so that one hostile field is what the broker looks at."""
    fresh = f"n{next(_numbers)}"
    partition = {"bytes_value": b"eu"}
    past = {"seconds": 1, "nanos": 0}
    requests: dict[str, dict[str, Any]] = {
        "CreateTenant": {"tenant_id": fresh, "tenant": {}},
        "GetTenant": {"name": "tenants/default"},
        "DeleteTenant": {"name": f"tenants/{fresh}"},
        "CreateNamespace": {"parent": "tenants/default", "namespace_id": fresh, "namespace": {}},
        "GetNamespace": {"name": SPACE},
        "ListNamespaces": {"parent": "tenants/default"},
        "DeleteNamespace": {"name": f"tenants/default/namespaces/{fresh}"},
        "CreateTopic": {
            "parent": SPACE,
            "topic_id": fresh,
            "topic": {"schema": COLUMNS.serialize().to_pybytes(), "partition_column": "place"},
        },
        "GetTopic": {"name": TOPIC},
        "ListTopics": {"parent": SPACE},
        "DeleteTopic": {"name": f"{SPACE}/topics/{fresh}"},
        "OffsetLocation": {"topic": PLACES, "partition_value": partition, "deadline": past},
        "GetPartition": {"topic": PLACES, "partition_value": partition},
        "ListPartitions": {"parent": PLACES},
    }
    return requests.get(name, {})


def _requests(name: str) -> Iterator[bytes]:
    kind = METHODS[name].request
    yield from (b"", *RAW)
    yield from (kind().SerializeToString() + raw for raw in RAW)
    yield kind(**_valid(name)).SerializeToString()
    for fields in _hostile(kind.DESCRIPTOR):
        for base in ({}, _valid(name)):
            # An inner message replaces all of a oneof that the valid request has chosen.
            request = (
                kind(**_merged(base, fields)) if "value" not in str(fields) else kind(**fields)
            )
            yield request.SerializeToString()
            if "partition_value" in fields:
                yield kind(**{**base, **fields}).SerializeToString()


def _waits(name: str, request: bytes) -> bool:
    """Whether the call is a long poll whose deadline is far."""
    if name != "OffsetLocation":
        return False
    try:
        return bool(METHODS[name].request.FromString(request).deadline.seconds > 2**30)
    except DecodeError:
        return False


class Calls:
    """Calls of the broker with bytes as requests, many at a time."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._turns = asyncio.Semaphore(CALLS_AT_ONCE)

    def start(self, name: str, request: bytes, seconds: float | None = WAIT_SECONDS) -> Any:
        return self._channel.unary_unary(METHODS[name].path)(request, timeout=seconds)

    async def code(self, name: str, request: bytes, seconds: float = WAIT_SECONDS) -> Any:
        async with self._turns:
            return await self.start(name, request, seconds).code()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker("--data", str(tmp_path_factory.mktemp("hostile")), *FREE_PORT) as made:
        yield made


@pytest_asyncio.fixture
async def calls(broker: Broker) -> AsyncIterator[Calls]:
    async with grpc.aio.insecure_channel(
        broker.grpc, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        made = Calls(channel)
        create = METHODS["CreateTopic"].request
        columns = _valid("CreateTopic")["topic"]
        for request in (
            create(parent=SPACE, topic_id="raw"),
            create(parent=SPACE, topic_id="places", topic=columns),
        ):
            await made.code("CreateTopic", request.SerializeToString())
        yield made
        unexpected = [
            line
            for line in broker.errors().splitlines()
            if json.loads(line)["level"] in ("warning", "error", "critical")
            and json.loads(line)["event"] != "loop_stalled"
        ]
        assert not unexpected, "\n".join(unexpected)
        assert broker.get("/readyz").status == 200


@pytest.mark.feature("F32")
@pytest.mark.parametrize("name", METHODS)
async def test_every_field_of_every_call_may_be_hostile(calls: Calls, name: str) -> None:
    requests = list(dict.fromkeys(_requests(name)))
    waits = {request for request in requests if _waits(name, request)}
    codes = await asyncio.gather(
        *(
            calls.code(name, request, 1 if request in waits else WAIT_SECONDS)
            for request in requests
        )
    )
    improper = {
        (code, request[:80])
        for code, request in zip(codes, requests, strict=True)
        if code not in PROPER | ({Code.DEADLINE_EXCEEDED} if request in waits else set())
    }
    assert improper == set()
    for code, request in zip(codes, requests, strict=True):
        if len(request) > RECEIVE_BYTES_MAX:
            assert code is Code.RESOURCE_EXHAUSTED
    valid = METHODS["GetTopic"].request(name=TOPIC).SerializeToString()
    assert await calls.code("GetTopic", valid) is Code.OK


async def test_no_damaged_schema_breaks_anything(calls: Calls) -> None:
    """Every byte of a valid schema in turn is another one, or the schema ends there."""
    good = COLUMNS.serialize().to_pybytes()
    damaged = [good[:n] for n in range(len(good))]
    damaged += [
        good[:n] + bytes([good[n] ^ flip]) + good[n + 1 :]
        for n in range(len(good))
        for flip in (0x01, 0x80, 0xFF)
    ]
    deep = pa.int64()
    for _ in range(500):
        deep = pa.list_(deep)
    odd = [deep, pa.dictionary(pa.int8(), pa.string()), pa.decimal128(3), pa.null()]
    damaged += [pa.schema([("a", kind)]).serialize().to_pybytes() for kind in odd]
    damaged += [pa.schema([(f"c{n}", pa.int8()) for n in range(5000)]).serialize().to_pybytes()]
    kind = METHODS["CreateTopic"].request
    requests = [
        kind(parent=SPACE, topic_id="damaged", topic={"schema": data}).SerializeToString()
        for data in damaged
    ]
    codes = await asyncio.gather(*(calls.code("CreateTopic", request) for request in requests))
    assert set(codes) <= {Code.OK, Code.INVALID_ARGUMENT, Code.ALREADY_EXISTS}


def _poll(offset: int = 0) -> bytes:
    """A request that waits for a message for an hour."""
    deadline = to_time(Microseconds(Clock().now_us() + 3_600_000_000))
    kind = METHODS["OffsetLocation"].request
    return bytes(kind(topic=TOPIC, offset=offset, deadline=deadline).SerializeToString())


@pytest.mark.feature("F17")
async def test_thousands_of_waiting_calls_hold_up_nobody_and_are_freed(
    broker: Broker, calls: Calls
) -> None:
    valid = METHODS["GetTopic"].request(name=TOPIC).SerializeToString()
    polls = [calls.start("OffsetLocation", _poll(), None) for _ in range(POLLS)]
    waiting = [asyncio.create_task(poll.code()) for poll in polls]
    assert await calls.code("GetTopic", valid) is Code.OK
    for poll in polls[::2]:
        poll.cancel()
    assert set(await asyncio.gather(*waiting[::2])) == {Code.CANCELLED}
    assert await calls.code("GetTopic", valid) is Code.OK
    rows = {"topic": "raw", "partition": None, "data": [{"payload": "x"}]}
    push = {"namespace": "default/default", "batches": [rows]}
    assert (await asyncio.to_thread(broker.post, "/v1/push", push)).status == 200
    assert set(await asyncio.gather(*waiting[1::2])) == {Code.OK}


async def test_calls_beyond_the_limit_are_refused_and_leave_when_their_client_does(
    tmp_path: Path,
) -> None:
    limit = ("--set", "grpc.max_calls=20")
    with Broker("--data", str(tmp_path), *FREE_PORT, *limit) as broker:
        create = METHODS["CreateTopic"].request(parent=SPACE, topic_id="raw").SerializeToString()
        valid = METHODS["GetTopic"].request(name=TOPIC).SerializeToString()
        async with grpc.aio.insecure_channel(broker.grpc) as other:
            assert await Calls(other).code("CreateTopic", create) is Code.OK
            async with grpc.aio.insecure_channel(broker.grpc) as channel:
                calls = Calls(channel)
                polls = [calls.start("OffsetLocation", _poll(), None) for _ in range(100)]
                refused = asyncio.as_completed([poll.code() for poll in polls])
                for code in itertools.islice(refused, 80):
                    assert await code is Code.RESOURCE_EXHAUSTED
                assert await Calls(other).code("GetTopic", valid) is Code.RESOURCE_EXHAUSTED
            # The channel is closed, and with it the calls that waited.

            async def answered() -> bool:
                return await Calls(other).code("GetTopic", valid) is Code.OK

            await eventually(answered)


async def test_calls_that_are_cancelled_at_any_moment_leave_nothing_half_done(
    calls: Calls,
) -> None:
    create = METHODS["CreateTopic"].request(parent=SPACE, topic_id="cut").SerializeToString()
    delete = METHODS["DeleteTopic"].request(name=f"{SPACE}/topics/cut").SerializeToString()
    for turn in range(40):
        name, request = (("CreateTopic", create), ("DeleteTopic", delete))[turn % 2]
        call = calls.start(name, request)
        await asyncio.sleep(turn * 0.0005)
        call.cancel()
        assert await call.code() in PROPER | {Code.CANCELLED}

    async def deleted() -> bool:
        code = await calls.code("DeleteTopic", delete)
        assert code in (Code.OK, Code.NOT_FOUND), code
        return code is Code.NOT_FOUND

    await eventually(deleted)
    assert await calls.code("CreateTopic", create) is Code.OK
    assert await calls.code("DeleteTopic", delete) is Code.OK
