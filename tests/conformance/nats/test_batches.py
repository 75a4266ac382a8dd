"""What the exchanges cannot show of batches and counters: whole batches, ends of connections,
kills. Asked of nats-server and of Penstock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.nats.both import server
from tests.conformance.nats.wire import ANSWER_SECONDS, Wire, api_request
from tests.servers.nats import OURS, NatsServer

__all__ = ["server"]


@pytest.fixture
def wire(server: NatsServer) -> Iterator[Wire]:
    with closing(Wire(server.port)) as made:
        yield made


def block(**fields: object) -> bytes:
    lines = [f"Nats-{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()


def create(wire: Wire, **config: object) -> None:
    told = api_request(wire, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], **config})
    assert told["did_create"] is True


def ask(wire: Wire, subject: str, payload: bytes, headers: bytes) -> dict[str, Any]:
    wire.send(b"SUB answer 77\r\n")
    wire.publish(subject, payload, "answer", headers)
    wire.read_until(1, ANSWER_SECONDS, sid="77")
    wire.send(b"UNSUB 77\r\n")
    texts = [frame.payload for frame in wire.take() if frame.sid == "77"]
    assert len(texts) == 1
    return json.loads(texts[0]) if texts[0] else {}


def messages(wire: Wire) -> int:
    state = api_request(wire, "STREAM.INFO.S")["state"]
    assert isinstance(state, dict)
    return int(state["messages"])


@pytest.mark.feature("P03")
def test_a_batch_has_a_thousand_messages_and_no_more(wire: Wire) -> None:
    create(wire, allow_atomic=True)
    for batch, count in (("full", 1000), ("more", 1001)):
        for sequence in range(1, count):
            headers = block(Batch_Id=batch, Batch_Sequence=sequence)
            wire.publish(f"s.{sequence}", b"x", "", headers)
        last = block(Batch_Id=batch, Batch_Sequence=count, Batch_Commit=1)
        told = ask(wire, "s.last", b"x", last)
        if batch == "full":
            assert told == {"stream": "S", "seq": 1000, "batch": "full", "count": 1000}
        else:
            assert told["error"]["err_code"] == 10199
    assert messages(wire) == 1000


@pytest.mark.feature("P03")
def test_fifty_batches_of_a_stream_may_be_open(wire: Wire) -> None:
    create(wire, allow_atomic=True)
    for number in range(50):
        told = ask(wire, "s.a", b"x", block(Batch_Id=number, Batch_Sequence=1))
        assert told == {}
    refused = ask(wire, "s.a", b"x", block(Batch_Id="more", Batch_Sequence=1))
    assert refused["error"] == {
        "code": 429,
        "err_code": 10210,
        "description": "atomic publish too many inflight",
    }
    last = block(Batch_Id=0, Batch_Sequence=2, Batch_Commit=1)
    assert ask(wire, "s.a", b"x", last)["count"] == 2
    assert ask(wire, "s.a", b"x", block(Batch_Id="more", Batch_Sequence=1)) == {}


@pytest.mark.feature("P03")
def test_a_kill_leaves_what_was_committed_and_nothing_of_what_was_not(
    server: NatsServer,
) -> None:
    with closing(Wire(server.port)) as before:
        create(before, allow_atomic=True, allow_msg_counter=True)
        assert ask(before, "s.a", b"", block(Incr=5))["val"] == "5"
        for sequence in (1, 2):
            headers = block(Incr=1, Batch_Id="kept", Batch_Sequence=sequence)
            assert ask(before, "s.a", b"", headers) == {}
        last = block(Incr=10, Batch_Id="kept", Batch_Sequence=3, Batch_Commit="eob")
        assert ask(before, "s.a", b"", last)["count"] == 2
        headers = block(Incr=100, Batch_Id="lost", Batch_Sequence=1)
        assert ask(before, "s.a", b"", headers) == {}
    server.close()
    server.start()
    with closing(Wire(server.port)) as after:
        assert messages(after) == 3
        last = block(Incr=100, Batch_Id="lost", Batch_Sequence=2, Batch_Commit=1)
        assert ask(after, "s.a", b"", last)["error"]["err_code"] == 10176
        assert ask(after, "s.a", b"", block(Incr=1))["val"] == "8"


@pytest.mark.feature("P03")
def test_increments_that_come_together_see_each_other(wire: Wire) -> None:
    create(wire, allow_msg_counter=True)
    count = 200
    wire.send(b"SUB in.> 9\r\n")
    headers = block(Incr=1)
    size = len(headers)
    lines = [
        b"HPUB s.%d in.%d %d %d\r\n%b\r\n" % (n % 2, n, size, size, headers) for n in range(count)
    ]
    wire.send(b"".join(lines))
    wire.read_until(count, ANSWER_SECONDS, sid="9")
    told = {frame.subject: json.loads(frame.payload) for frame in wire.take() if frame.sid == "9"}
    assert [told[f"in.{n}"] for n in range(count)] == [
        {"stream": "S", "seq": n + 1, "val": str(n // 2 + 1)} for n in range(count)
    ]


@pytest.mark.feature("P03")
def test_a_fast_batch_of_many_messages_is_acknowledged_in_steps(wire: Wire) -> None:
    create(wire, allow_batched=True)
    wire.send(b"SUB in.b.> 9\r\n")
    wire.publish("s.a", b"x", "in.b.100.fail.1.0.$FI")
    wire.read_until(1, ANSWER_SECONDS, sid="9")
    count = 5000
    lines = [
        b"PUB s.a in.b.100.fail.%d.%d.$FI 1\r\nx\r\n" % (n, 2 if n == count else 1)
        for n in range(2, count + 1)
    ]
    wire.send(b"".join(lines))
    told: list[dict[str, Any]] = []
    while not told or "count" not in told[-1]:
        assert wire.read_until(1, ANSWER_SECONDS, sid="9")
        told += [json.loads(frame.payload) for frame in wire.take() if frame.sid == "9"]
    assert told[0] == {"type": "ack", "seq": 0, "msgs": 100}
    acks = [one["seq"] for one in told[1:-1]]
    assert acks == sorted(acks)
    assert all(seq % 100 == 0 for seq in acks)
    assert told[-1] == {"stream": "S", "seq": count, "batch": "b", "count": count}
    assert messages(wire) == count


def test_the_end_of_its_connection_gives_a_batch_up(tmp_path: Path) -> None:
    """Ours only: nats-server keeps it for ten seconds more."""
    server = NatsServer(tmp_path, OURS)
    server.start()
    try:
        with closing(Wire(server.port)) as other, closing(Wire(server.port)) as listening:
            create(other, allow_atomic=True)
            listening.send(b"SUB $JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S 5\r\n")
            listening.settle()
            listening.take()
            assert ask(other, "s.a", b"x", block(Batch_Id="b", Batch_Sequence=1)) == {}
            other.close()
            assert listening.read_until(1, ANSWER_SECONDS, sid="5")
            last = block(Batch_Id="b", Batch_Sequence=2, Batch_Commit=1)
            assert [frame.sid for frame in listening.take()] == ["5"]
            assert ask(listening, "s.a", b"x", last)["error"]["err_code"] == 10176
    finally:
        server.close()
