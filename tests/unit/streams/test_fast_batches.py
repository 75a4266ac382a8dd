"""Fast batches are stored as they are received, acknowledged in steps and ended by the client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Event

import pytest

from penstock.host.disk import Buffer
from penstock.streams import fast_batches
from penstock.streams.fast_batches import FLOW_MAX, FastBatch
from penstock.streams.open_batches import IdleTimeout
from penstock.streams.stream import Stream
from penstock.wire.jetstream.fast_batches import FastMessage, Operation
from penstock.wire.parser import Publishes
from tests.broker.streams import Streaming, appended_runs, block, fail_once
from tests.eventually import eventually


async def batch(flow: int, others: int = 0) -> FastBatch:
    patience = IdleTimeout(60, lambda: None)
    patience.stop()
    made = FastBatch(FastMessage(b"b", flow, True, 1, Operation.START), patience)
    made.begin(others)
    return made


@pytest.mark.parametrize(
    ("asked", "others", "flow"), [(10, 0, 10), (60_000, 0, FLOW_MAX), (10, 1, 1)]
)
async def test_the_only_batch_begins_with_the_flow_it_requested(
    asked: int, others: int, flow: int
) -> None:
    assert (await batch(asked, others)).flow == flow


async def test_an_ack_is_due_at_every_step_and_one_covers_several_steps() -> None:
    made = await batch(10)
    made.stored = 9
    assert not made.next_ack(1)
    made.stored = 10
    assert made.next_ack(1)
    assert (made.acked, made.flow) == (10, 10)
    made.stored = 45
    assert made.next_ack(1)
    assert made.acked == 40
    assert not made.next_ack(1)


async def test_a_batch_speeds_up_to_its_requested_flow() -> None:
    made, flows = await batch(10, others=1), list[int]()
    for stored in (1, 3, 7, 15, 25):
        made.stored = stored
        assert made.next_ack(2)
        flows.append(made.flow)
    assert flows == [2, 4, 8, 10, 10]


async def test_a_batch_slows_down_to_its_fair_share() -> None:
    made, flows = await batch(FLOW_MAX), list[int]()
    for _ in range(4):
        made.stored += made.flow
        assert made.next_ack(5)
        flows.append(made.flow)
    assert flows == [250, 125, 100, 100]
    made.stored += made.flow
    assert made.next_ack(FLOW_MAX * 2)
    assert made.flow == 50


def reply(
    sequence: int, operation: int, *, flow: int = 10, gaps: str = "ok", name: str = "b"
) -> bytes:
    return f"i.{name}.{flow}.{gaps}.{sequence}.{operation}.$FI".encode()


def ack(seq: int, messages: int) -> dict[str, object]:
    return {"type": "ack", "seq": seq, "msgs": messages}


def gap(expected: int, seq: int) -> dict[str, object]:
    return {"type": "gap", "last_seq": expected, "seq": seq}


def committed(seq: int, count: int, name: str = "b") -> dict[str, object]:
    return {"stream": "s", "seq": seq, "batch": name, "count": count}


def refused(code: int, err_code: int, text: str) -> dict[str, object]:
    error = {"code": code, "err_code": err_code, "description": text}
    return {"error": error, "stream": "s", "seq": 0}


UNKNOWN = refused(400, 10208, "batch publish ID unknown")


def send(made: Streaming, *replies: bytes, fields: str = "", payload: bytes | None = None) -> None:
    """Messages of one run."""
    publisher = made.streams.route(b"s.a")
    assert publisher is not None
    count = len(replies)
    blocks = [block(fields)] * count if fields else None
    texts = [one if payload is None else payload for one in replies]
    publisher.publish(Publishes([b"s.a"] * count, list(replies), blocks, texts), lambda: None)


async def told(made: Streaming, count: int) -> list[dict[str, object]]:
    """The next answers, without those who got them."""

    async def there() -> bool:
        return len(made.told) >= count

    await eventually(there)
    answers = [document for _, document in made.told]
    assert len(answers) == count
    made.told.clear()
    return answers


async def payloads(stream: Stream) -> list[bytes]:
    return [text async for rows in stream.rows_from(0, 5000) for text in rows.payloads]


@pytest.mark.feature("P03")
async def test_a_fast_batch_is_stored_as_received_and_its_commit_is_answered(
    made: Streaming,
) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0))
    assert await told(made, 1) == [ack(0, 10)]
    send(made, reply(2, 1), reply(3, 2))
    assert await told(made, 1) == [committed(3, 3)]
    assert await payloads(stream) == [reply(1, 0), reply(2, 1), reply(3, 2)]
    assert made.streams.open_batches.fast_batches == 0


async def test_the_end_of_a_fast_batch_may_be_left_out_of_it(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0), reply(2, 1), reply(3, 3))
    assert await told(made, 2) == [ack(0, 10), committed(2, 2)]
    assert stream.messages == 2


@pytest.mark.feature("P03")
async def test_a_run_is_one_append_with_one_ack(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    runs = appended_runs(stream, monkeypatch)
    send(made, reply(1, 0), *[reply(n, 1) for n in range(2, 26)])
    assert await told(made, 2) == [ack(0, 10), ack(20, 10)]
    assert runs == [25]
    assert stream.messages == 25


async def test_several_batches_share_the_unacknowledged_messages(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_batches, "FLOW_MAX", 8)
    await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0, flow=100))
    send(made, reply(1, 0, flow=100, name="c"))
    assert await told(made, 3) == [ack(0, 8), ack(0, 1), ack(1, 2)]
    send(made, *[reply(n, 1, flow=100, name="c") for n in (2, 3)])
    assert await told(made, 1) == [ack(3, 4)]
    send(made, *[reply(n, 1, flow=100) for n in range(2, 9)])
    assert await told(made, 1) == [ack(8, 4)]


async def test_messages_are_acknowledged_when_they_are_durable(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    fail_once(made, monkeypatch)
    send(made, reply(1, 0, flow=1), reply(2, 1, flow=1))
    first, second = await told(made, 2)
    assert first == ack(0, 1)
    assert isinstance(second["error"], dict)
    assert second["error"]["err_code"] == 10077
    assert stream.messages == 0
    assert made.streams.open_batches.fast_batches == 0


async def test_an_ack_does_not_cover_messages_received_during_the_write(
    made: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    disk, gates = made.served.broker.logs._engine.disk, [Event(), Event()]
    write, writes = disk.write, iter(gates)

    def gated(fd: int, pieces: Sequence[Buffer]) -> None:
        if (gate := next(writes, None)) is not None:
            gate.wait()
        write(fd, pieces)

    monkeypatch.setattr(disk, "write", gated)
    send(made, reply(1, 0, flow=1))
    publisher = made.streams.route(b"s.a")
    assert publisher is not None
    await publisher.drained()
    await asyncio.sleep(0)
    send(made, *[reply(n, 1, flow=1) for n in (2, 3, 4)])
    await publisher.drained()
    gates[0].set()
    assert await told(made, 2) == [ack(0, 1), ack(1, 1)]
    gates[1].set()
    assert await told(made, 1) == [ack(4, 1)]
    assert stream.messages == 4


async def test_messages_after_the_end_of_a_batch_are_not_stored(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0), reply(2, 2), reply(3, 1))
    assert await told(made, 2) == [ack(0, 10), committed(2, 2)]
    assert stream.messages == 2


@pytest.mark.feature("P03")
async def test_a_gap_is_reported_and_ends_a_batch_that_allows_none(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0), reply(3, 1), reply(6, 3))
    assert await told(made, 4) == [ack(0, 10), gap(2, 3), gap(4, 6), committed(2, 5)]
    send(made, *[reply(n, op, gaps="fail") for n, op in ((1, 0), (2, 1), (4, 1), (5, 1))])
    assert await told(made, 3) == [ack(0, 10), gap(3, 4), committed(4, 2)]
    send(made, reply(6, 1, gaps="fail"))
    assert await told(made, 1) == [UNKNOWN]
    assert stream.messages == 4


async def test_a_repeated_sequence_ends_a_batch(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0), reply(2, 1), reply(2, 1))
    assert await told(made, 3) == [ack(0, 10), gap(3, 2), committed(2, 2)]


async def test_a_ping_repeats_the_last_ack_and_reports_gaps(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0, flow=2), reply(2, 1, flow=2))
    assert await told(made, 2) == [ack(0, 2), ack(2, 2)]
    send(made, reply(2, 4, flow=2))
    assert await told(made, 1) == [ack(2, 2)]
    send(made, reply(3, 4, flow=2))
    assert await told(made, 2) == [gap(3, 4), ack(2, 2)]
    send(made, reply(4, 4, flow=2))
    assert await told(made, 2) == [gap(4, 5), ack(4, 2)]
    send(made, reply(1, 0, gaps="fail", name="c"), reply(2, 4, gaps="fail", name="c"))
    assert await told(made, 3) == [ack(0, 1), gap(2, 3), committed(3, 1, "c")]
    send(made, reply(1, 4, name="d"))
    assert await told(made, 1) == [UNKNOWN]
    assert stream.messages == 3


WRONG = {"code": 400, "err_code": 10071, "description": "wrong last sequence: 2"}


FAILED = {"type": "err", "seq": 3, "error": WRONG}


@pytest.mark.parametrize(
    ("gaps", "answers"), [("ok", [FAILED]), ("fail", [FAILED, committed(2, 2)])]
)
async def test_a_failed_check_is_reported_and_may_end_the_batch(
    made: Streaming, gaps: str, answers: list[object]
) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0, gaps=gaps), reply(2, 1, gaps=gaps))
    await told(made, 1)
    send(made, reply(3, 1, gaps=gaps), fields="Nats-Expected-Last-Sequence: 99")
    assert await told(made, len(answers)) == answers
    assert stream.messages == 2


async def test_a_refused_first_message_is_answered_like_a_single_message(
    made: Streaming,
) -> None:
    await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 2, gaps="fail"), fields="Nats-Expected-Last-Sequence: 99")
    assert await told(made, 1) == [refused(400, 10071, "wrong last sequence: 0")]
    send(made, reply(1, 2), fields="Nats-Msg-Id: i")
    assert await told(made, 1) == [committed(1, 1)]
    send(made, reply(1, 2, gaps="fail"), fields="Nats-Msg-Id: i")
    assert await told(made, 1) == [committed(1, 1) | {"duplicate": True}]


async def test_a_duplicate_in_a_fast_batch_is_skipped(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0, flow=2), reply(2, 1, flow=2), fields="Nats-Msg-Id: i")
    assert await told(made, 2) == [ack(0, 2), ack(2, 2)]
    send(made, reply(3, 2, flow=2), fields="Nats-Msg-Id: i")
    assert await told(made, 1) == [committed(1, 3)]
    assert stream.messages == 1


async def test_headers_are_stored_without_the_required_api_level(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 2), fields="A: b")
    await told(made, 1)
    send(made, reply(1, 2), fields="Nats-Required-Api-Level: 1")
    await told(made, 1)
    rows = await stream.read_offsets([0, 1])
    assert list(rows.headers or ()) == [block("A: b"), b""]
    send(made, reply(1, 0), fields="Nats-Required-Api-Level: 99")
    assert await told(made, 1) == [refused(412, 10185, "JetStream minimum api level required")]
    assert made.streams.open_batches.fast_batches == 0


async def test_an_idle_fast_batch_ends(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_batched=True)
    made.streams.open_batches.idle_seconds = 0.05
    send(made, reply(1, 0))

    async def gone() -> bool:
        return bool(made.told) and made.streams.open_batches.fast_batches == 0

    await eventually(gone)
    made.told.clear()
    send(made, reply(2, 1))
    assert await told(made, 1) == [UNKNOWN]


@pytest.mark.parametrize("name", ["FAST_BATCHES_MAX", "STREAM_FAST_BATCHES_MAX"])
async def test_the_number_of_fast_batches_is_limited(
    made: Streaming, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(fast_batches, name, 1)
    await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0), reply(1, 0, name="c"))
    assert await told(made, 2) == [
        ack(0, 10),
        refused(429, 10211, "batch publish too many inflight"),
    ]


async def test_a_stream_without_fast_batches_refuses_their_messages(made: Streaming) -> None:
    stream = await made.create("s", subjects=["s.>"])
    send(made, reply(1, 0), b"x.$FI", b"plain")
    disabled = refused(400, 10205, "batch publish is disabled")
    assert await told(made, 3) == [disabled, disabled, {"stream": "s", "seq": 1}]
    assert stream.messages == 1


async def test_a_message_that_is_too_large_leaves_a_gap(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_batched=True, max_msg_size=30)
    send(made, reply(1, 0))
    await told(made, 1)
    send(made, reply(2, 1), payload=b"x" * 31)
    assert await told(made, 1) == [refused(400, 10054, "message size exceeds maximum allowed")]
    send(made, reply(3, 3))
    assert await told(made, 2) == [gap(2, 3), committed(1, 2)]


async def test_an_update_that_disallows_batches_discards_open_ones(made: Streaming) -> None:
    await made.create("s", subjects=["s.>"], allow_batched=True)
    send(made, reply(1, 0))
    await told(made, 1)
    await made.streams.delete("s")
    assert made.streams.open_batches.fast_batches == 0
