"""The file of message ids."""

from __future__ import annotations

import msgspec
import pytest
from crc32c import crc32c

from penstock.formats import message_ids
from penstock.formats.message_ids import MessageId, MessageIdsBody
from penstock.model.errors import FormatError, VersionUnknown
from tests.unit.formats.test_page import tables

IDS = [MessageId(b"a", 1, 1_000), MessageId(b"", 2, 1_001), MessageId(b"\xff" * 300, 1 << 62, 9)]


@pytest.mark.parametrize("ids", [[], IDS])
def test_ids_are_decoded_as_they_were_encoded(ids: list[MessageId]) -> None:
    assert list(message_ids.decode(message_ids.encode(ids))) == ids


def test_a_changed_byte_anywhere_is_damage() -> None:
    data = message_ids.encode(IDS[:1])
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(FormatError):
            message_ids.decode(changed)
    with pytest.raises(FormatError):
        message_ids.decode(b"")


def test_a_body_of_another_kind_is_damage_and_a_later_version_is_unknown() -> None:
    for body, error in ((b"\x01", FormatError), (_later(), VersionUnknown)):
        with pytest.raises(error):
            message_ids.decode(body + crc32c(body).to_bytes(4, "little"))


def test_the_page_of_formats_describes_every_field() -> None:
    (rows,) = tables("Message ids")
    assert [row["Field"] for row in rows] == list(MessageIdsBody.__struct_fields__)


def _later() -> bytes:
    return msgspec.msgpack.encode(MessageIdsBody(message_ids.VERSION + 1, b"", b"", b"", b""))
