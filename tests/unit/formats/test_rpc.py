"""The services, and the page that describes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError

from penstock.formats import rpc

PROTO = (Path(__file__).parents[3] / "docs" / "penstock.proto").read_text(encoding="utf-8")
PLAIN = re.sub(r"//.*", "", PROTO)


def _fields(body: str) -> Iterator[str]:
    union = ""
    for line in filter(None, map(str.strip, body.splitlines())):
        if opened := re.fullmatch(r"oneof (\w+) \{", line):
            union = f"{opened[1]}/"
        elif line == "}":
            union = ""
        else:
            field = re.fullmatch(r"(repeated )?([\w.]+) (\w+) = (\d+);", line)
            assert field is not None, line
            yield f"{union}{field[3]}:{field[4]}:{'*' if field[1] else ''}{field[2]}"


def test_the_page_describes_exactly_the_messages_there_are() -> None:
    found = re.findall(r"^message (\w+) \{\n(.*?)^\}", PLAIN, re.MULTILINE | re.DOTALL)
    assert {name: list(_fields(body)) for name, body in found} == {
        name: fields.split() for name, fields in rpc.MESSAGES.items()
    }
    assert re.findall(r"^package (.*);", PLAIN, re.MULTILINE) == [rpc.PACKAGE]


def test_the_page_describes_exactly_the_calls_there_are() -> None:
    services = re.findall(r"^service (\w+) \{\n(.*?)^\}", PLAIN, re.MULTILINE | re.DOTALL)
    calls = {
        name: re.findall(r"rpc (\w+)\((\w+)\) returns \(([\w.]+)\);", body)
        for name, body in services
    }
    assert calls == {
        service: [(name, f"{name}Request", response) for name, response in methods.items()]
        for service, methods in rpc.SERVICES.items()
    }
    assert rpc.METHODS["OffsetLocation"].path == "/penstock.v1.OffsetRegistry/OffsetLocation"


@pytest.mark.parametrize("name", rpc.MESSAGES)
def test_every_number_of_a_message_is_used_once(name: str) -> None:
    numbers = [field.split(":")[1] for field in rpc.MESSAGES[name].split()]
    assert len(set(numbers)) == len(numbers)


def test_a_message_is_read_back_and_other_bytes_are_refused() -> None:
    facts = rpc.message("ErrorFacts", error="Overloaded", facts=["a", "b"])
    assert rpc.parse("ErrorFacts", facts.SerializeToString()) == facts
    with pytest.raises(DecodeError):
        rpc.parse("ErrorFacts", b"\xff")
