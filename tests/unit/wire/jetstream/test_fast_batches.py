"""The reply subjects of fast batches, and the documents that answer them."""

from __future__ import annotations

import pytest

from penstock.wire.jetstream import errors, fast_batches
from penstock.wire.jetstream.fast_batches import FastMessage, Operation, parse


def test_a_reply_describes_its_message() -> None:
    assert parse(b"_INBOX.x.y.batch.10.ok.1.0.$FI") == FastMessage(
        b"batch", 10, True, 1, Operation.START
    )
    assert parse(b"p.b.65536.fail.18446744073709551614.2.$FI") == FastMessage(
        b"b", 65_535, False, (1 << 64) - 2, Operation.COMMIT
    )


@pytest.mark.parametrize(
    "words",
    [
        "",
        "b",
        "b.10.ok.1.0",
        "p.b.10.ok.1.5",
        "p.b.10.ok.1.x",
        "p.b.10.ok.1.",
        "p.b.10.maybe.1.0",
        "p.b.10.ok.0.0",
        "p.b.10.ok.x.0",
        "p.b.10.ok.-1.1",
        "p.b.10.ok.2.0",
        "p.b.10.ok.1.1",
        "p.b.10.ok.1.3",
        "p.b.10.ok.18446744073709551615.1",
        "p.b.10.ok.999999999999999999999999.1",
    ],
)
def test_malformed_reply_subjects_are_ignored(words: str) -> None:
    assert parse(words.encode() + b".$FI") is None


@pytest.mark.parametrize(
    ("flow", "read"), [("0", 10), ("x", 10), ("", 10), ("1", 1), ("99999999999999999999", 65_535)]
)
def test_flow_is_bounded_and_ten_by_default(flow: str, read: int) -> None:
    told = parse(f"p.b.{flow}.ok.2.1.$FI".encode())
    assert told is not None
    assert told.flow == read


def test_two_operations_end_a_batch() -> None:
    ends = [one for one in Operation if FastMessage(b"b", 1, True, 2, one).commits]
    assert ends == [Operation.COMMIT, Operation.END]


def test_answers() -> None:
    assert fast_batches.ack(7, 3) == b'{"type":"ack","seq":7,"msgs":3}'
    assert fast_batches.gap(2, 5) == b'{"type":"gap","last_seq":2,"seq":5}'
    assert fast_batches.failure(4, errors.WRONG_LAST_SEQUENCE.error(9)) == (
        b'{"type":"err","seq":4,"error":{"code":400,"err_code":10071,'
        b'"description":"wrong last sequence: 9"}}'
    )
