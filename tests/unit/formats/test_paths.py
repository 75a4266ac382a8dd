import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.paths import (
    ENCODED_BYTES_MAX,
    encode_name,
    parse_wal_name,
    topic_directory,
    wal_name,
)
from penstock.model.names import TopicName

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("orders-1_b", "orders-1_b"),
        ("Orders", "%4frders"),
        ("a%b", "a%25b"),
        ("é", "%c3%a9"),
        ("..", "%2e%2e"),
        (
            "é" * 255,
            "%c3%a9" * 22 + "%c%%2a1d012ff2a7aa952e3c47c73e8a32863ee9c7d7b2a87810b18372f632cda48c",
        ),
    ],
)
def test_a_name_is_encoded_as_documented(name: str, encoded: str) -> None:
    assert encode_name(name) == encoded


@given(NAMES, NAMES)
def test_different_names_stay_different_even_without_case(one: str, other: str) -> None:
    assert (encode_name(one).lower() == encode_name(other).lower()) == (one == other)


@given(NAMES)
def test_an_encoded_name_is_plain_and_short(name: str) -> None:
    assert re.fullmatch(rf"[a-z0-9_%-]{{1,{ENCODED_BYTES_MAX}}}", encode_name(name))


def test_names_that_differ_after_the_cut_stay_different() -> None:
    one, other = "X" * 254 + "a", "X" * 254 + "b"
    assert encode_name(one)[:134] == encode_name(other)[:134]
    assert encode_name(one) != encode_name(other)


def test_a_topic_has_a_directory_below_its_namespace() -> None:
    assert topic_directory(TopicName("t", "n", "A")) == "t/n/%41"


@given(st.integers(0, 10**10 - 1), st.integers(0, 10**16 - 1))
def test_a_wal_file_name_carries_sequence_and_first_frame(sequence: int, frame: int) -> None:
    assert parse_wal_name(wal_name(sequence, frame)) == (sequence, frame)


def test_wal_files_sort_by_sequence() -> None:
    assert wal_name(3, 17) == "wal-0000000003-0000000000000017.log"
    assert wal_name(9, 0) < wal_name(10, 0) < wal_name(10, 1)


@pytest.mark.parametrize(
    "name",
    [
        "reserve",
        "wal-3-17.log",
        "wal-0000000003-0000000000000017.log.tmp",
        "wal-0000000003-0000000000000017.log.64.broken",
        "wal-0000000003-0000000000000017.log\n",
    ],
)
def test_other_files_are_no_wal_files(name: str) -> None:
    assert parse_wal_name(name) is None
