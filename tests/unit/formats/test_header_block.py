import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import header_block
from penstock.model.errors import FormatError

KEYS = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=":"), min_size=1
)
VALUES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(KEYS, VALUES), min_size=1))
def test_headers_are_read_back_in_their_order(pairs: list[tuple[str, str]]) -> None:
    assert header_block.decode(header_block.encode(pairs)) == pairs


def test_a_block_is_a_nats_header_block() -> None:
    assert header_block.encode([("a", "1"), ("a", "")]) == b"NATS/1.0\r\na: 1\r\na: \r\n\r\n"


def test_no_headers_are_no_block() -> None:
    assert header_block.encode([]) == b""
    assert header_block.decode(b"") == []


@pytest.mark.parametrize("key", ["", "a:b", "a\r", "a\nb", "a b", "\u00fc", "\x7f"])
def test_a_key_that_would_break_the_block_is_refused(key: str) -> None:
    with pytest.raises(FormatError, match="must be visible ASCII characters without ':'"):
        header_block.encode([(key, "v")])


@pytest.mark.parametrize("value", ["a\r\nb: c", "\n", "\r"])
def test_a_value_with_a_line_break_is_refused(value: str) -> None:
    with pytest.raises(FormatError, match="the value of header 'k' must not have line breaks"):
        header_block.encode([("k", value)])


@pytest.mark.parametrize(
    ("block", "pairs"),
    [
        (b"NATS/1.0\r\nk:v\r\n\r\n", [("k", "v")]),
        (b"NATS/1.0 503\r\nk:  v: w\r\n\r\n", [("k", " v: w")]),
        (b"NATS/1.0\r\nstray\r\n\r\n", [("stray", "")]),
        (b"NATS/1.0\r\nk: \xff\r\n\r\n", [("k", "\ufffd")]),
    ],
)
def test_blocks_of_other_writers_are_shown_as_far_as_they_go(
    block: bytes, pairs: list[tuple[str, str]]
) -> None:
    assert header_block.decode(block) == pairs
