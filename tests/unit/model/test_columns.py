"""Columns of raw messages, made at once or at the first access."""

from __future__ import annotations

import pyarrow as pa

from penstock.model.columns import Columns, content_bytes, held_bytes


def binary(values: list[bytes]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def test_a_payload_function_is_called_once_at_the_first_access() -> None:
    calls: list[int] = []

    def make() -> pa.BinaryArray:
        calls.append(1)
        return binary([b"a", b"b"])

    columns = Columns(b"s", make)
    assert calls == []
    assert columns.payload.to_pylist() == columns.payload.to_pylist() == [b"a", b"b"]
    assert calls == [1]


def test_columns_are_equal_when_their_messages_are() -> None:
    direct, lazy = Columns(b"s", binary([b"a"])), Columns(b"s", lambda: binary([b"a"]), None, b"x")
    assert direct == lazy
    assert direct != Columns(b"t", binary([b"a"]))
    assert direct != Columns(b"s", binary([b"a"]), binary([b"h"]))
    assert direct != "columns"


def test_slices_and_picks_keep_a_shared_subject() -> None:
    columns = Columns(b"s", binary([b"a", b"b", b"c"]), binary([b"", b"h", b""]))
    assert columns.slice(1, 2) == Columns(b"s", binary([b"b", b"c"]), binary([b"h", b""]))
    assert columns.take(pa.array([2, 0])) == Columns(b"s", binary([b"c", b"a"]), binary([b"", b""]))
    assert columns.subjects().to_pylist() == [b"s", b"s", b"s"]


def test_a_known_body_encodes_the_columns() -> None:
    columns = Columns(b"s", lambda: binary([b"a"]), None, b"0123456789")
    assert held_bytes(columns) == 10
    assert content_bytes(columns) == 1 + binary([b"a"]).nbytes
