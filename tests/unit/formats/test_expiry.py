"""The files of the expiry table."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from crc32c import crc32c

from penstock.formats import expiry
from penstock.formats.expiry import (
    BLOCK_ENTRIES,
    NO_ENTRIES,
    RUN_HEADER,
    RUN_HEADER_BYTES,
    ExpiryCheckpoint,
    ExpiryEntries,
    RunHeader,
    RunInfo,
)
from penstock.model.errors import FormatError, VersionUnknown
from tests.unit.formats.test_page import layout, section, tables

CHECKPOINT = ExpiryCheckpoint(1, "lineage", 1 << 62, [RunInfo(3, 2000, 7, 9)])


def entries(count: int) -> ExpiryEntries:
    numbers = np.arange(count, dtype=np.int64)
    return ExpiryEntries(numbers * 10, numbers[::-1] + (1 << 40))


def blocks(data: bytes, count: int) -> list[ExpiryEntries]:
    expiry.check_run_header(data, count)
    found = []
    for block in range(-(-count // BLOCK_ENTRIES)):
        position, size = expiry.block_range(count, block)
        found.append(expiry.decode_block(data[position : position + size], size))
    return found


@pytest.mark.parametrize("count", [0, 1, BLOCK_ENTRIES, BLOCK_ENTRIES + 1, 5 * BLOCK_ENTRIES - 1])
def test_a_run_is_read_block_by_block_as_it_was_written(count: int) -> None:
    written = entries(count)
    data = expiry.encode_run(written)
    assert len(data) == expiry.run_bytes(count)
    found = expiry.concatenate(blocks(data, count))
    assert found.dues.tolist() == written.dues.tolist()
    assert found.offsets.tolist() == written.offsets.tolist()


def test_a_changed_byte_anywhere_in_a_run_is_damage() -> None:
    data = expiry.encode_run(entries(3))
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(FormatError):
            blocks(changed, 3)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            blocks(data[:size], 3)


def test_a_run_of_another_size_or_version_is_not_the_one_that_is_named() -> None:
    with pytest.raises(FormatError):
        expiry.check_run_header(expiry.encode_run(entries(3)), 4)
    later = RUN_HEADER.pack(expiry.RUN_MAGIC, expiry.VERSION + 1, 0, BLOCK_ENTRIES, 3)
    with pytest.raises(VersionUnknown):
        expiry.check_run_header(later + crc32c(later).to_bytes(4, "little"), 3)


def test_entries_are_ordered_by_their_due_times() -> None:
    mixed = ExpiryEntries(np.array([5, 1, 3]), np.array([0, 1, 2]))
    ordered = mixed.by_due_time()
    assert (ordered.dues.tolist(), ordered.offsets.tolist()) == ([1, 3, 5], [1, 2, 0])
    assert len(expiry.concatenate([])) == len(NO_ENTRIES) == 0


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    for written in (CHECKPOINT, msgspec.structs.replace(CHECKPOINT, runs=[])):
        assert expiry.decode_checkpoint(expiry.encode_checkpoint(written)) == written


def test_a_changed_byte_anywhere_in_a_checkpoint_is_damage() -> None:
    data = expiry.encode_checkpoint(CHECKPOINT)
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(FormatError):
            expiry.decode_checkpoint(changed)
    with pytest.raises(FormatError):
        expiry.decode_checkpoint(b"")


def test_a_checkpoint_of_another_kind_is_damage_and_a_later_version_is_unknown() -> None:
    later = msgspec.msgpack.encode(msgspec.structs.replace(CHECKPOINT, version=expiry.VERSION + 1))
    for body, error in ((b"\x01", FormatError), (later, VersionUnknown)):
        with pytest.raises(error):
            expiry.decode_checkpoint(body + crc32c(body).to_bytes(4, "little"))


def test_the_page_of_formats_describes_every_field() -> None:
    checkpoint, run, header = tables("Expiry table")
    assert [row["Field"] for row in checkpoint] == list(ExpiryCheckpoint.__struct_fields__)
    assert [row["Field"] for row in run] == list(RunInfo.__struct_fields__)
    written = [(int(row["Offset"]), int(row["Size"]), row["Field"]) for row in header]
    assert written == layout(RunHeader._fields, RUN_HEADER)
    meanings = {row["Field"]: row["Meaning"] for row in header}
    assert meanings["magic"] == f"`{expiry.RUN_MAGIC.hex(' ')}`"
    assert meanings["version"] == str(expiry.VERSION)
    assert meanings["block_entries"].startswith(str(BLOCK_ENTRIES))
    assert f"{RUN_HEADER_BYTES} bytes" in section("Expiry table")
