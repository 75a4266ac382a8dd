"""The header of copied messages, encoded and parsed."""

import msgspec
import pytest

from penstock.wire.jetstream.sourced import SourceOrigin, identity, mark, origin_of, source_key
from penstock.wire.jetstream.stream_config import StreamSource


def _source(**fields: object) -> StreamSource:
    return msgspec.convert({"name": "o", **fields}, StreamSource)


@pytest.mark.parametrize(
    ("source", "key"),
    [
        (_source(), "o > >"),
        (_source(filter_subject=">"), "o > >"),
        (_source(filter_subject="o.1", opt_start_seq=4), "o o.1 >"),
        (_source(subject_transforms=[{"src": "a", "dest": "b"}]), "o a b"),
        (_source(subject_transforms=[{"src": "a"}, {"dest": "x.>"}]), "o a\f> >\fx.>"),
    ],
)
def test_sources_of_one_stream_filter_and_destination_have_one_key(
    source: StreamSource, key: str
) -> None:
    assert source_key(source) == key


def test_a_copy_has_the_headers_of_its_message_and_names_its_origin() -> None:
    blocks = [
        b"",
        b"NATS/1.0\r\nA: 100%d\r\n\r\n",
        (
            b"NATS/1.0\r\nNats-Expected-Stream: o\r\nNats-Batch-Id: 1\r\nNats-Msg-Id: 5\r\n"
            b"Nats-Stream-Source: p 1 > > p.1 aaaaaaaa\r\n\r\n"
        ),
    ]
    marked = mark("o%d > >", "abcdefgh", blocks, [1, 2, 7], [b"a", b"b%b", b"c"])
    assert marked == [
        b"NATS/1.0\r\nNats-Stream-Source: o%d 1 > > a abcdefgh\r\n\r\n",
        b"NATS/1.0\r\nA: 100%d\r\nNats-Stream-Source: o%d 2 > > b%b abcdefgh\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: 5\r\nNats-Stream-Source: o%d 7 > > c abcdefgh\r\n\r\n",
    ]
    assert origin_of(marked[2]) == SourceOrigin("o%d > >", 7, "abcdefgh")


@pytest.mark.parametrize(
    ("value", "origin"),
    [
        (b"o 3 a\x0cb c\x0c> a", SourceOrigin("o a\fb c\f>", 3, "")),
        (b"o x > > a abcdefgh", None),
        (b"o 3", None),
        (b"", None),
    ],
)
def test_a_header_that_names_no_position_is_none(value: bytes, origin: SourceOrigin | None) -> None:
    assert origin_of(b"NATS/1.0\r\nNats-Stream-Source: %b\r\n\r\n" % value) == origin


def test_streams_of_different_times_have_different_identities() -> None:
    first, second = identity(1_700_000_000_000_000), identity(1_700_000_000_000_001)
    assert first != second
    assert (len(first), first.isalnum()) == (8, True)
