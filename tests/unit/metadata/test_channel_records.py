"""Records of channels."""

import pytest

from penstock.metadata.channel_records import (
    Channel,
    Consumer,
    Producer,
    Record,
    Scheduled,
    decode,
    encode,
)
from penstock.metadata.interface import MetadataEntry, Revision
from penstock.metadata.sealing import Sealing
from penstock.model.errors import FormatError, VersionUnknown

RECORDS: list[Record] = [
    Producer("p", "P", "canary", 1, 2),
    Channel("c", "C", "canary", "canary-key", 3, 1, 2),
    Consumer("c", "k", "K", "canary", "http://a/", "push", 3, "u", 9, ["canary-secret"], 1, 2),
    Scheduled("c", "m", "p", "text/plain", 3, [("a", "b")], b"\xff", 9, 1),
]


def entry(value: bytes) -> MetadataEntry:
    return MetadataEntry("/key", value, Revision(1), Revision(1), 1, None)


@pytest.mark.feature("C17")
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_and_its_secrets_are_sealed(record: Record) -> None:
    for sealing in (Sealing(), Sealing("key")):
        kept = encode(record, sealing)
        assert decode(entry(kept), type(record), sealing) == record  # type: ignore[type-var]
    assert b"canary" not in kept


def test_what_cannot_be_read_is_told() -> None:
    with pytest.raises(FormatError, match="/key is damaged"):
        decode(entry(b"{}"), Producer, Sealing())
    with pytest.raises(VersionUnknown):
        decode(entry(b'{"version": 2}'), Producer, Sealing())
