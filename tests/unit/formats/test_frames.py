import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import frames
from penstock.formats.frames import (
    BODY_BYTES_MAX,
    FILE_HEADER_BYTES,
    FILE_MAGIC,
    FILE_VERSION,
    FRAME_HEADER_BYTES,
    JOINED_BYTES_MAX,
    FileHeader,
    FrameHeader,
    body_intact,
    decode_file_header,
    decode_frame_header,
    encode_file_header,
    encode_frame,
    file_checksum,
    frame_bytes,
    intact_frames,
)
from penstock.model.errors import FormatError, VersionUnknown
from tests.unit.formats import golden
from tests.unit.formats.golden import MARK, Frame

U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
FILE_HEADERS = st.builds(
    FileHeader,
    st.just(FILE_MAGIC),
    st.just(FILE_VERSION),
    *(U16, U32, U64, U64, I64, U64, U64, U32),
)
FRAME_HEADERS = st.builds(
    FrameHeader,
    U32,
    st.just(0),
    *(st.integers(0, 255), st.integers(0, 255), U16, U32, U64, U64, U64, I64, I64, U32),
)


def crc32c_by_the_book(data: bytes) -> int:
    """CRC32C bit by bit: Castagnoli's polynomial, reflected."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def resealed(data: bytes) -> bytes:
    """A header with a right checksum over changed fields."""
    return data[:60] + struct.pack("<I", crc32c_by_the_book(data[:60]))


# -- file header


@given(FILE_HEADERS)
def test_a_file_header_is_read_back_as_it_was_written(header: FileHeader) -> None:
    data = encode_file_header(header)
    assert len(data) == FILE_HEADER_BYTES
    assert decode_file_header(data) == header
    assert decode_file_header(memoryview(data + b"frames")) == header


@pytest.mark.feature("T02")
def test_the_file_header_has_these_bytes() -> None:
    assert encode_file_header(golden.FILE_HEADER) == golden.FILE_HEADER_BYTES
    assert decode_file_header(golden.FILE_HEADER_BYTES) == golden.FILE_HEADER
    assert resealed(golden.FILE_HEADER_BYTES) == golden.FILE_HEADER_BYTES


@pytest.mark.feature("T02")
def test_a_file_of_a_later_version_is_refused_by_name() -> None:
    later = encode_file_header(golden.FILE_HEADER._replace(version=FILE_VERSION + 1))
    with pytest.raises(VersionUnknown) as caught:
        decode_file_header(later)
    assert str(caught.value) == (
        "the WAL file has format version 2, this Penstock reads up to 1: upgrade it"
    )


def test_every_flipped_bit_of_a_file_header_is_noticed() -> None:
    for bit in range(8 * FILE_HEADER_BYTES):
        data = bytearray(golden.FILE_HEADER_BYTES)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError) as caught:
            decode_file_header(data)
        assert not isinstance(caught.value, VersionUnknown)


def test_a_file_header_cut_anywhere_is_refused() -> None:
    for size in range(FILE_HEADER_BYTES):
        with pytest.raises(FormatError, match=f"has 64 bytes, found {size}"):
            decode_file_header(golden.FILE_HEADER_BYTES[:size])


# -- frames


@given(FRAME_HEADERS, st.lists(st.binary(max_size=40), max_size=4), st.integers(0, 3))
def test_a_frame_is_read_back_as_it_was_written(
    fields: FrameHeader, pieces: list[bytes], before: int
) -> None:
    body = b"".join(pieces)
    header = fields._replace(body_bytes=len(body))
    position = 8 * before
    data = bytes(position) + b"".join(encode_frame(header, pieces)) + b"behind"
    end = position + header.frame_bytes
    start = position + FRAME_HEADER_BYTES
    assert decode_frame_header(data, position, header.mark) == header
    assert body_intact(data, position, header)
    assert data[start : start + header.body_bytes] == body
    assert data[end:] == b"behind"
    assert header.frame_bytes % 8 == 0
    assert header.frame_bytes == frame_bytes(len(body))
    assert header.next_offset == header.first_offset + header.entries


@pytest.mark.feature("T02")
@pytest.mark.parametrize("frame", golden.FRAMES, ids=lambda frame: frame.name)
def test_a_frame_has_these_bytes(frame: Frame) -> None:
    assert b"".join(encode_frame(frame.header, frame.pieces)) == frame.data
    assert decode_frame_header(frame.data, 0, MARK) == frame.header
    assert body_intact(frame.data, 0, frame.header)


@pytest.mark.feature("T02")
@pytest.mark.parametrize("frame", golden.FRAMES, ids=lambda frame: frame.name)
def test_both_checksums_of_a_frame_are_crc32c_by_the_book(frame: Frame) -> None:
    header_crc, frame_crc = frame.data[60:64], frame.data[-4:]
    assert int.from_bytes(header_crc, "little") == crc32c_by_the_book(frame.data[:60])
    covered = frame.data[:60] + frame.data[64:-4]
    assert int.from_bytes(frame_crc, "little") == crc32c_by_the_book(covered)


@pytest.mark.feature("T02", "T05")
@pytest.mark.parametrize("frame", golden.FRAMES, ids=lambda frame: frame.name)
def test_every_flipped_bit_of_a_frame_is_noticed(frame: Frame) -> None:
    for bit in range(8 * len(frame.data)):
        data = bytearray(frame.data)
        data[bit // 8] ^= 1 << bit % 8
        header = decode_frame_header(data, 0, MARK)
        if bit < 8 * FRAME_HEADER_BYTES:
            assert header is None
        else:
            assert header == frame.header
            assert not body_intact(data, 0, frame.header)


@pytest.mark.parametrize("frame", golden.FRAMES, ids=lambda frame: frame.name)
def test_a_frame_cut_anywhere_is_not_intact(frame: Frame) -> None:
    for size in range(len(frame.data)):
        header = decode_frame_header(frame.data[:size], 0, MARK)
        assert header == (None if size < FRAME_HEADER_BYTES else frame.header)
        assert not body_intact(frame.data[:size], 0, frame.header)


def test_a_frame_of_another_file_is_not_ours() -> None:
    assert decode_frame_header(golden.FRAMES[0].data, 0, MARK + 1) is None
    assert intact_frames(golden.FRAMES[0].data, MARK + 1, 0, 9) == ([], 0)


def test_intact_frames_are_found_up_to_the_first_that_is_not() -> None:
    sizes = [len(frame.data) for frame in golden.FRAMES]
    starts = [8 + sum(sizes[:n]) for n in range(len(sizes))]
    data = bytes(8) + b"".join(frame.data for frame in golden.FRAMES)
    for view in (data, bytearray(data), memoryview(data)):
        assert intact_frames(view, MARK, 8, 99) == (starts, len(data))
    assert intact_frames(data, MARK, 8, 2) == (starts[:2], starts[2])
    assert intact_frames(data, MARK, starts[3], 99) == (starts[3:], len(data))
    assert intact_frames(data, MARK, 0, 99) == ([], 0)
    assert intact_frames(data + bytes(100), MARK, 8, 99) == (starts, len(data))
    for size in range(starts[2], starts[4]):
        whole = 3 if size >= starts[3] else 2
        assert intact_frames(data[:size], MARK, 8, 99) == (starts[:whole], starts[whole])


@pytest.mark.feature("T05")
def test_no_frame_with_a_flipped_bit_is_found_intact() -> None:
    one, two, three = (frame.data for frame in golden.FRAMES[:3])
    for bit in range(8 * len(two)):
        flipped = bytearray(two)
        flipped[bit // 8] ^= 1 << bit % 8
        assert intact_frames(one + flipped + three, MARK, 0, 9) == ([0], len(one))


def test_a_body_has_a_limit_and_a_header_above_it_is_damage() -> None:
    fields = golden.FRAMES[0].header
    longest = encode_frame(fields._replace(body_bytes=BODY_BYTES_MAX), [])[0]
    beyond = encode_frame(fields._replace(body_bytes=BODY_BYTES_MAX + 1), [])[0]
    assert decode_frame_header(longest, 0, MARK) is not None
    assert decode_frame_header(beyond, 0, MARK) is None


def test_a_whole_frame_above_the_limit_is_not_intact(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = golden.FRAMES[0]
    monkeypatch.setattr(frames, "BODY_BYTES_MAX", frame.header.body_bytes)
    assert intact_frames(frame.data, MARK, 0, 1) == ([0], len(frame.data))
    monkeypatch.setattr(frames, "BODY_BYTES_MAX", frame.header.body_bytes - 1)
    assert intact_frames(frame.data, MARK, 0, 1) == ([], 0)


@pytest.mark.parametrize("size", [0, 2048, 2049, 100_003])
def test_checksums_are_the_same_whether_that_of_the_body_is_known_or_not(size: int) -> None:
    body = bytes(n * 7 % 256 for n in range(size))
    header = FrameHeader(MARK, size, 1, 2, 0, 3, 4, 4, 0, 5, 6, 7)
    known = crc32c(body) if size > JOINED_BYTES_MAX else None
    pieces = encode_frame(header, [body[:11], body[11:]], known)
    frame = b"".join(pieces)
    assert frame == b"".join(encode_frame(header, [body]))
    before = crc32c(b"what was there")
    assert file_checksum(before, header, pieces, known) == crc32c(frame, before)
    assert file_checksum(before, header, pieces, None) == crc32c(frame, before)
