"""Cursors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.http.channels.pages import PageCursor, PageRequest, links, wanted
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.routes import Request

PLACES = st.builds(PageCursor, st.integers(0, 4_000_000_000_000_000), st.text(max_size=20))


def asked(query: str) -> PageRequest:
    async def receive() -> dict[str, object]:
        return {}

    scope = {"query_string": query.encode(), "headers": []}
    return wanted(Request(scope, receive, {}))


@given(PLACES, PLACES)
def test_a_link_leads_to_its_place(first: PageCursor, last: PageCursor) -> None:
    found = links("/x", first, last, "status=1")
    query = found["next"].removeprefix("/x?")
    assert query.startswith("status=1&")
    assert asked(query) == PageRequest(older=last)
    assert asked(found["previous"].removeprefix("/x?")) == PageRequest(newer=first)


def test_an_empty_page_has_no_neighbours() -> None:
    assert links("/x", None, None) == {}


@given(st.text(alphabet=st.characters(max_codepoint=127, exclude_characters="&;+#")))
def test_whatever_is_no_cursor_asks_for_the_first_page(text: str) -> None:
    assert asked(f"next={text}") in (PageRequest(), asked(f"next={text}"))


def test_two_directions_at_once_are_refused() -> None:
    with pytest.raises(BadRequest, match="can not decide"):
        asked("next=a&previous=b")
