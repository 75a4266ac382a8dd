from penstock.formats.frames import FrameHeader, encode_frame
from penstock.formats.stretch import HEADER, Stretch
from tests.unit.formats import golden

FIELDS = [frame.header for frame in golden.FRAMES]


def together() -> tuple[bytes, list[int]]:
    """The golden frames one behind the other, with a few bytes that are no frame at the end."""
    data, positions = b"", []
    for frame in golden.FRAMES:
        positions.append(len(data))
        data += frame.data
    return data + b"end", positions


def test_the_headers_are_columns_of_the_same_numbers() -> None:
    frames = Stretch.at(*together())
    assert HEADER.names == (*FrameHeader._fields, "crc32c")
    assert [FrameHeader(*row[:-1]) for row in frames.headers.tolist()] == FIELDS
    assert [row[-1].to_bytes(4, "little") for row in frames.headers.tolist()] == [
        frame.data[60:64] for frame in golden.FRAMES
    ]
    assert frames.kinds.tolist() == [header.kind for header in FIELDS]
    assert frames.partitions.tolist() == [header.partition for header in FIELDS]
    assert frames.first_offsets.tolist() == [header.first_offset for header in FIELDS]
    assert frames.next_offsets.tolist() == [header.next_offset for header in FIELDS]
    assert frames.frame_bytes.tolist() == [len(frame.data) for frame in golden.FRAMES]
    assert frames.ends.tolist() == [*frames.positions.tolist()[1:], len(together()[0]) - 3]


def test_the_largest_numbers_are_kept() -> None:
    most = FrameHeader(
        *(2**32 - 1, 0, 255, 255, 2**16 - 1, 2**32 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1),
        *(2**62, 2**63 - 1, 2**32 - 1),
    )
    frames = Stretch.at(bytes(encode_frame(most, [])[0]), [0])
    assert FrameHeader(*frames.headers.tolist()[0][:-1]) == most
    assert frames.next_offsets.tolist() == [most.next_offset]
    longest = most._replace(body_bytes=2**32 - 1)
    frames = Stretch.at(bytes(encode_frame(longest, [])[0]), [0])
    assert frames.frame_bytes.tolist() == [longest.frame_bytes]


def test_a_row_is_a_frame() -> None:
    frames = Stretch.at(*together())
    assert [frames.header(row) for row in range(len(frames))] == FIELDS
    assert [bytes(frames.body(row)) for row in range(len(frames))] == [
        b"".join(frame.pieces) for frame in golden.FRAMES
    ]
    part = frames[2:4]
    assert [part.header(row) for row in range(len(part))] == FIELDS[2:4]
    assert part.body(0) == frames.body(2)
    assert len(frames[frames.kinds == 99]) == 0


def test_frames_set_apart_stand_alone_between_the_others() -> None:
    frames = Stretch.at(*together())[:6]
    for numbers, expected in (
        ((), [[0, 1, 2, 3, 4, 5]]),
        ((0, 5), [[0], [1, 2, 3, 4], [5]]),
        ((2, 3), [[0, 1], [2], [3], [4, 5]]),
        (range(6), [[0], [1], [2], [3], [4], [5]]),
    ):
        rows = frames.positions * 0 != 0
        rows[list(numbers)] = True
        places = frames.positions.tolist()
        parts = [part.positions.tolist() for part in frames.apart(rows)]
        assert parts == [[places[n] for n in part] for part in expected]
