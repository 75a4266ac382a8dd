"""Encodes runs of messages for a client.

A run is written column by column into one list and joined once, so that messages are not formatted
one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_END: Final = b"\r\n"


def messages(
    subjects: bytes | Sequence[bytes],
    sid: bytes,
    replies: Sequence[bytes] | None,
    headers: Sequence[bytes] | None,
    payloads: Sequence[bytes],
) -> bytes:
    """Encode `MSG`, or `HMSG` for messages with headers; `subjects` may be one for all."""
    blocks = headers if headers is not None and any(headers) else None
    columns: list[bytes | Sequence[bytes]] = [
        b"MSG " if blocks is None else [b"HMSG " if block else b"MSG " for block in blocks],
        subjects,
        b" %b " % sid,
    ]
    columns += [] if replies is None else [replies, b" "]
    columns += [_sizes(blocks, payloads)] if blocks is None else [_sizes(blocks, payloads), blocks]
    return _joined([*columns, payloads, _END], len(payloads))


def _sizes(blocks: Sequence[bytes] | None, payloads: Sequence[bytes]) -> Sequence[bytes]:
    """The sizes at the end of each line; a run usually has few different ones."""
    sizes = list(map(len, payloads))
    if blocks is None:
        texts = {size: b"%d\r\n" % size for size in set(sizes)}
        return [texts[size] for size in sizes]
    pairs = list(zip(map(len, blocks), sizes, strict=True))
    both = {
        (head, size): b"%d %d\r\n" % (head, head + size) if head else b"%d\r\n" % size
        for head, size in set(pairs)
    }
    return [both[pair] for pair in pairs]


def _joined(columns: Sequence[bytes | Sequence[bytes]], count: int) -> bytes:
    """Join the columns row by row; a column that is bytes has this value in every row."""
    width = len(columns)
    cells = [column if isinstance(column, bytes) else b"" for column in columns] * count
    for index, column in enumerate(columns):
        if not isinstance(column, bytes):
            cells[index::width] = column
    return b"".join(cells)
