"""What nats-server's mirrors get wrong in direct gets, and Penstock's do not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.nats.wire import ANSWER_SECONDS, Wire, api_request
from tests.servers.nats import OURS, NatsServer

GETS = 60
"""Of nats-server's answers to so many, about half are wrong."""


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    """An origin O with five messages in `o.0` to `o.4`."""
    server = NatsServer(tmp_path, OURS)
    server.start()
    wire = Wire(server.port)
    wire.send(b"SUB in 1\r\n")
    origin = {"name": "O", "subjects": ["o.>"], "allow_direct": True}
    api_request(wire, "STREAM.CREATE.O", origin)
    for number in range(5):
        wire.publish(f"o.{number}", b"%d" % number, "in")
    assert wire.read_until(5, ANSWER_SECONDS)
    wire.take()
    yield wire
    wire.close()
    server.close()


def _mirror(wire: Wire, name: str, messages: int, **mirror: object) -> None:
    """A mirror, once it has caught up."""
    api_request(wire, f"STREAM.CREATE.{name}", {"name": name, "mirror": {"name": "O", **mirror}})
    state: dict[str, Any] = {}
    while state.get("messages") != messages:
        state = api_request(wire, f"STREAM.INFO.{name}")["state"]  # type: ignore[assignment]


def _last(wire: Wire, subject: str) -> Counter[str]:
    """What so many gets of the last message of a subject find: its sequence, or the status."""
    body = json.dumps({"last_by_subj": subject}).encode()
    for _ in range(GETS):
        wire.publish("$JS.API.DIRECT.GET.O", body, "in")
    assert wire.read_until(GETS, ANSWER_SECONDS)
    return Counter(_found(frame.headers) for frame in wire.take())


def _found(headers: bytes) -> str:
    status, *fields = headers.decode().split("\r\n")
    sequences = [field for field in fields if field.startswith("Nats-Sequence")]
    return sequences[0] if sequences else status


@pytest.mark.feature("G08")
def test_a_mirror_of_a_part_never_denies_what_its_origin_has(wire: Wire) -> None:
    _mirror(wire, "PART", 1, filter_subject="o.1")
    _mirror(wire, "LATE", 2, opt_start_seq=4)
    for number in range(5):
        assert _last(wire, f"o.{number}") == {f"Nats-Sequence: {number + 1}": GETS}


@pytest.mark.feature("G08")
def test_what_was_deleted_is_not_read_from_a_mirror(wire: Wire) -> None:
    _mirror(wire, "M", 5)
    assert api_request(wire, "STREAM.MSG.DELETE.O", {"seq": 2})["success"]
    assert _last(wire, "o.1") == {"NATS/1.0 404 Message Not Found": GETS}
    assert api_request(wire, "STREAM.PURGE.O")["success"]
    assert _last(wire, "o.0") == {"NATS/1.0 404 Message Not Found": GETS}


def test_what_was_just_published_is_read(wire: Wire) -> None:
    _mirror(wire, "M", 5)
    for number in range(20):
        wire.publish("o.0", b"new", "in")
        assert wire.read_until(1, ANSWER_SECONDS)
        wire.take()
        wire.publish("$JS.API.DIRECT.GET.O.o.0", b"", "in")
        assert wire.read_until(1, ANSWER_SECONDS)
        (got,) = wire.take()
        assert _found(got.headers) == f"Nats-Sequence: {6 + number}"
