import base64
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import header_block, json_messages
from penstock.formats.json_messages import FEW, MessageLists
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.units import Microseconds, Offset, PartitionId

NOW = Microseconds(1_700_000_000_000_001)
SHOWN = "2023-11-14T22:13:20.000001Z"


def _read(*messages: object, only: bool = False) -> MessageLists:
    return json_messages.messages(json.dumps(messages).encode(), "topic", only)


def _refused(*messages: object, only: bool = False) -> str:
    with pytest.raises(FormatError) as caught:
        _read(*messages, only=only)
    return str(caught.value)


def _batch(
    subjects: bytes | list[bytes],
    payloads: list[bytes],
    headers: list[bytes] | None = None,
    stamps: list[int] | None = None,
) -> Batch:
    content = Columns(
        subjects if isinstance(subjects, bytes) else pa.array(subjects, pa.binary()),
        pa.array(payloads, pa.binary()),
        None if headers is None else pa.array(headers, pa.binary()),
    )
    times = None if stamps is None else pa.array(stamps, pa.int64())
    first = NOW if stamps is None else Microseconds(stamps[0])
    return Batch(PartitionId(0), Offset(0), len(payloads), first, content, times)


def _written(batch: Batch) -> Any:
    return json.loads(b"[" + b"".join(json_messages.text(batch)).removesuffix(b",") + b"]")


def test_messages_without_a_subject_get_the_topics() -> None:
    assert _read({"payload": "a"}, {"payload_b64": "/w=="}) == MessageLists(
        b"topic", [b"a", b"\xff"], None
    )
    assert _read({"payload": "", "subject": "topic"}) == MessageLists(b"topic", [b""], None)
    assert _read({"payload": "a", "subject": "x.y"}, {"payload": "b"}) == MessageLists(
        [b"x.y", b"topic"], [b"a", b"b"], None
    )


def test_headers_become_blocks() -> None:
    lists = _read({"payload": "a", "headers": [["k", "v"], ["k", "w"]]}, {"payload": "b"})
    assert lists.headers == [b"NATS/1.0\r\nk: v\r\nk: w\r\n\r\n", b""]


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({}, "data[1]: one of payload and payload_b64 is needed"),
        (
            {"payload": "a", "payload_b64": "YQ=="},
            "data[1]: one of payload and payload_b64 is needed",
        ),
        ({"payload": 1}, "data[1].payload: Expected `str`, got `int`"),
        ({"payload": "a", "key": 1}, "data[1]: Object contains unknown field `key`"),
        ({"payload_b64": "?"}, "data[1].payload_b64: Invalid base64 encoded string"),
        ({"payload": "a", "subject": "a b"}, "data[1].subject: 'a b' is not a subject"),
        ({"payload": "a", "subject": "a.*"}, "data[1].subject: 'a.*' is not a subject"),
        ({"payload": "a", "subject": ""}, "data[1].subject: '' is not a subject"),
        (
            {"payload": "a", "headers": [["a:b", ""]]},
            "data[1].headers: header key 'a:b' must be visible ASCII characters without ':'",
        ),
        (
            {"payload": "a", "headers": {"a": "b"}},
            "data[1].headers: Expected `array`, got `object`",
        ),
    ],
)
def test_an_invalid_message_is_refused_by_its_index(message: dict[str, Any], sentence: str) -> None:
    assert _refused({"payload": "fine"}, message) == sentence


def test_messages_of_one_partition_have_its_subject() -> None:
    assert (
        _read({"payload": "a", "subject": "topic"}, {"payload": "b"}, only=True).subjects
        == b"topic"
    )
    assert _refused({"payload": "a", "subject": "other"}, only=True) == (
        "data[0].subject: must be that of the partition, 'topic'"
    )


def test_columns_are_the_same_messages() -> None:
    messages = [
        {"payload": "a", "subject": "x", "headers": [["k", "v"]]},
        {"payload_b64": "/w=="},
    ]
    subjects, payloads, headers = json_messages.columns(json.dumps(messages).encode(), "topic")
    assert not isinstance(subjects, bytes)
    assert subjects.to_pylist() == [b"x", b"topic"]
    assert payloads.to_pylist() == [b"a", b"\xff"]
    assert headers is not None
    assert headers.to_pylist() == [b"NATS/1.0\r\nk: v\r\n\r\n", b""]
    assert json_messages.columns(b'[{"payload":"a"}]', "t") == (b"t", pa.array([b"a"]), None)


def test_text_is_payload_and_everything_else_base64() -> None:
    few = [
        {"subject": "s", "timestamp": SHOWN, "payload": "a\n"},
        {"subject": "s", "timestamp": SHOWN, "payload": "\u00fc\x00"},
        {"subject": "s", "timestamp": SHOWN, "payload_b64": "/w=="},
    ]
    for times in (1, FEW):
        payloads = [b"a\n", "\u00fc\x00".encode(), b"\xff"] * times
        assert _written(_batch(b"s", payloads)) == few * times


def test_headers_are_encoded_if_there_are_any() -> None:
    block = header_block.encode([("k", 'a"b'), ("k", "")])
    few = [
        {"subject": "s", "timestamp": SHOWN, "payload": "a"},
        {"subject": "s", "timestamp": SHOWN, "headers": [["k", 'a"b'], ["k", ""]], "payload": "b"},
        {"subject": "s", "timestamp": SHOWN, "headers": [["k", 'a"b'], ["k", ""]], "payload": "c"},
    ]
    for times in (1, FEW):
        batch = _batch(b"s", [b"a", b"b", b"c"] * times, [b"", block, block] * times)
        assert _written(batch) == few * times


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([b"a", b'q"q', "\u00fc.x".encode()]),
        st.one_of(st.binary(), st.text().map(str.encode)),
        st.integers(0, 250_000_000_000_000_000),
    ),
    min_size=1,
    max_size=6,
)


@given(MESSAGES, st.sampled_from([1, FEW]))
def test_messages_agree_with_the_standard_json_parser(
    messages: list[tuple[bytes, bytes, int]], times: int
) -> None:
    messages = messages * times
    subjects, payloads, stamps = map(list, zip(*messages, strict=True))
    expected = []
    for subject, payload, stamp in messages:
        moment = datetime.fromtimestamp(stamp // 1_000_000, UTC).replace(
            microsecond=stamp % 1_000_000
        )
        told = {
            "subject": subject.decode(),
            "timestamp": moment.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }
        try:
            told["payload"] = payload.decode()
        except UnicodeDecodeError:
            told["payload_b64"] = base64.b64encode(payload).decode()
        expected.append(told)
    assert _written(_batch(subjects, payloads, stamps=stamps)) == expected
    same = [{**told, "timestamp": SHOWN, "subject": "s"} for told in expected]
    assert _written(_batch(b"s", payloads)) == same


def test_many_messages_come_in_pieces() -> None:
    payloads = [b"%d" % n for n in range(100_000)]
    stamps = list(range(100_000))
    batch = _batch(b"s", payloads, stamps=stamps)
    pieces = list(json_messages.text(batch))
    assert len(pieces) > 1
    again = json.loads(b"[" + b"".join(pieces)[:-1] + b"]")
    assert [message["payload"].encode() for message in again] == payloads
    assert again[-1]["timestamp"] == "1970-01-01T00:00:00.099999Z"
