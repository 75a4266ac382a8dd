"""A small frame of every kind and codec, as bytes that all versions must read."""

from typing import Final, NamedTuple

import pyarrow as pa
from pyroaring import BitMap64

from penstock.formats.bodies import (
    DeleteBody,
    LinkBody,
    LinkPart,
    ObjectRef,
    SealBody,
    StartBody,
    Transaction,
)
from penstock.formats.frames import FILE_MAGIC, Codec, FileHeader, Flag, FrameHeader, Kind

MARK: Final = 0x01020304
WHEN: Final = 1_700_000_000_000_000

FILE_HEADER: Final = FileHeader(FILE_MAGIC, 1, 0, MARK, 3, 17, WHEN, 4096, 4000, 2)
FILE_HEADER_BYTES: Final = bytes.fromhex(
    "89505357414c0d0a 0100 0000 04030201 0300000000000000 1100000000000000 00401e18240a0600"
    "0010000000000000 a00f000000000000 02000000 ba0f2926"
)


class Frame(NamedTuple):
    """A frame and its bytes; `pieces` are its body."""

    name: str
    header: FrameHeader
    pieces: list[bytes]
    data: bytes


def _frame(
    name: str, kind: Kind, codec: Codec, flags: int, entries: int, pieces: list[str], data: str
) -> Frame:
    body = [bytes.fromhex(piece) for piece in pieces]
    size = sum(map(len, body))
    header = FrameHeader(MARK, size, kind, codec, flags, 2, 7, 6, 1, 3, WHEN, entries)
    return Frame(name, header, body, bytes.fromhex(data))


_MIDDLE: Final = "02000000 0700000000000000 0600000000000000 0100000000000000 0300000000000000"
_WHEN: Final = "00401e18240a0600"

ARROW_ROWS: Final = pa.record_batch({"n": pa.array([7], pa.int32())})
ARROW_BODY: Final = (
    "ffffffff780000001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000"
    "00040000000100000014000000100014000800060007000c00000010001000000000000102100000001c0000000400"
    "000000000000010000006e00000008000c0008000700080000000000000120000000ffffffff880000001400000000"
    "0000000c0016000600050008000c000c0000000003040018000000080000000000000000000a0018000c0004000800"
    "0a0000003c000000100000000100000000000000000000000200000000000000000000000000000000000000000000"
    "00000000000400000000000000000000000100000001000000000000000000000000000000070000000000000"
    "0ffffffff00000000"
)

FRAMES: Final = [
    _frame(
        "batch, packed",
        Kind.BATCH,
        Codec.PACKED,
        Flag.SAME_SUBJECT,
        1,
        ["0000000001000000", "0000000002000000", "61", "6869"],
        f"04030201 13000000 01 01 0100 {_MIDDLE} {_WHEN} 01000000 5c1ba35a"
        "00000000 01000000 00000000 02000000 61 6869 00 ab77fd72",
    ),
    _frame(
        "batch, packed, every column",
        Kind.BATCH,
        Codec.PACKED,
        Flag.HEADERS | Flag.TIMESTAMPS,
        2,
        [
            "05000000000000000600000000000000",
            "000000000100000003000000",
            "000000000000000001000000",
            "000000000200000002000000",
            "616263",
            "68",
            "6869",
        ],
        f"04030201 3a000000 01 01 0600 {_MIDDLE} {_WHEN} 02000000 871eaa74"
        "0500000000000000 0600000000000000 00000000 01000000 03000000 00000000 00000000 01000000"
        "00000000 02000000 02000000 616263 68 6869 0000 0d4afbec",
    ),
    _frame(
        "batch, arrow",
        Kind.BATCH,
        Codec.ARROW,
        0,
        1,
        [ARROW_BODY],
        f"04030201 20010000 01 02 0000 {_MIDDLE} {_WHEN} 01000000 40646dda"
        f"{ARROW_BODY} 00000000 c10d21da",
    ),
    _frame(
        "link",
        Kind.LINK,
        Codec.NATIVE,
        0,
        1,
        ["93a17104919302039195a16b010905c0"],
        f"04030201 10000000 02 00 0000 {_MIDDLE} {_WHEN} 01000000 65ac1bcc"
        "93 a171 04 91 93 02 03 91 95 a16b 01 09 05 c0 00000000 8f6efcdb",
    ),
    _frame(
        "delete",
        Kind.DELETE,
        Codec.NATIVE,
        0,
        0,
        ["9300c41e0100000000000000000000003a3000000100000000000000100000000100a76d657373616765"],
        f"04030201 2a000000 03 00 0000 {_MIDDLE} {_WHEN} 00000000 885e243e"
        "93 00 c41e 0100000000000000 00000000 3a300000 01000000 0000 0000 10000000 0100"
        "a7 6d657373616765 0000 749bd4b4",
    ),
    _frame(
        "settle",
        Kind.SETTLE,
        Codec.NATIVE,
        0,
        1,
        ["0102"],
        f"04030201 02000000 04 00 0000 {_MIDDLE} {_WHEN} 01000000 72df12ec0102 0000 bb1c7f36",
    ),
    _frame(
        "checkpoint",
        Kind.CHECKPOINT,
        Codec.NATIVE,
        Flag.CLOSE,
        0,
        [],
        f"04030201 00000000 05 00 4000 {_MIDDLE} {_WHEN} 00000000 99d8571f00000000 c54be128",
    ),
]

BODIES: Final = [
    (
        LinkBody("q", 4, [LinkPart(2, 3, [ObjectRef("k", 1, 9, 5)])], b"s"),
        bytes.fromhex("94 a171 04 91 93 02 03 91 95 a16b 01 09 05 c0 c40173"),
    ),
    (
        DeleteBody(0, BitMap64([1]).serialize(), "returned", b"r"),
        b"\x94\x00\xc4\x1e" + BitMap64([1]).serialize() + b"\xa8returned\xc4\x01r",
    ),
    (
        StartBody(
            "t",
            9,
            b"\0\0\0\0",
            bytes(8),
            b"\5\0\0\0\0\0\0\0",
            {0: b"x"},
            {"q": Transaction(4, {0: (1, 2)}, 7)},
            "l",
            "fsync",
            -1,
            0,
        ),
        bytes.fromhex(
            "9b a174 09 c40400000000 c4080000000000000000 c4080500000000000000 81 00 c40178"
            "81 a171 93 04 81 00 92 01 02 07 a16c a56673796e63 ff 00"
        ),
    ),
    (SealBody(5, b"tt"), bytes.fromhex("92 05 c4027474")),
]
