"""Records of entities."""

import pytest

from penstock.delivery.channels.entities import (
    Channel,
    Endpoint,
    Entity,
    Producer,
    ScheduledMessage,
    decode,
    encode,
)
from penstock.delivery.channels.sealing import Sealing
from penstock.metadata.interface import MetadataEntry, Revision
from penstock.model.errors import FormatError, VersionUnknown

RECORDS: list[Entity] = [
    Producer("p", "P", "canary", 1, 2),
    Channel("c", "C", "canary", "canary-key", 3, 1, 2),
    Endpoint("c", "k", "K", "canary", "http://a/", "push", 3, "u", 9, ["canary-secret"], 1, 2),
    ScheduledMessage("c", "m", "p", "text/plain", 3, [("a", "b")], b"\xff", 9, 1),
]


def entry(value: bytes) -> MetadataEntry:
    return MetadataEntry("/key", value, Revision(1), Revision(1), 1, None)


@pytest.mark.feature("C17")
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_an_entity_is_stored_with_sealed_secrets_and_restored(record: Entity) -> None:
    for sealing in (Sealing(), Sealing("key")):
        stored = encode(record, sealing)
        assert decode(entry(stored), type(record), sealing) == record  # type: ignore[type-var]
    assert b"canary" not in stored


def test_a_damaged_or_newer_record_is_refused() -> None:
    with pytest.raises(FormatError, match="/key is damaged"):
        decode(entry(b"{}"), Producer, Sealing())
    with pytest.raises(VersionUnknown):
        decode(entry(b'{"version": 2}'), Producer, Sealing())
