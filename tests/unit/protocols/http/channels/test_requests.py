"""Requests to the channel API."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.channels import CursorQuery, PageCursor
from penstock.model.errors import PenstockError
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels.replies import page_links
from penstock.protocols.http.channels.requests import cursor_query, form, tokens_match
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.routes import Request
from tests.broker.http import received_request

FORM = (b"content-type", b"application/x-www-form-urlencoded; charset=utf-8")


async def test_the_first_value_of_each_form_field_is_used() -> None:
    request = received_request(b"a=1&a=2&b=%C3%A4+x&c=", b"", FORM)
    assert await form(request, Bodies(100, 100)) == {"a": "1", "b": "ä x", "c": ""}


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"a=1", (), "Media type not supported"),
        (b"&".join([b"a=1"] * 200), (FORM,), "too many"),
        (b"a=\xff", (FORM,), "percent-encoded"),
    ],
)
async def test_a_body_that_is_not_a_form_is_refused(
    body: bytes, headers: tuple[tuple[bytes, bytes], ...], message: str
) -> None:
    with pytest.raises(PenstockError, match=message):
        await form(received_request(body, b"", *headers), Bodies(1000, 1000))


@pytest.mark.feature("C17")
def test_tokens_are_compared_as_a_whole() -> None:
    assert tokens_match("secret", "secret")
    assert not any(
        tokens_match(token, "secret") for token in (None, "", "Secret", "secre", "secrets")
    )
    assert tokens_match("ä", "ä")


CURSORS = st.builds(PageCursor, st.integers(0, 4_000_000_000_000_000), st.text(max_size=20))


def query_of(query: str) -> CursorQuery:
    async def receive() -> dict[str, object]:
        return {}

    scope = {"query_string": query.encode(), "headers": []}
    return cursor_query(Request(scope, receive, {}))


@given(CURSORS, CURSORS)
def test_a_link_has_the_cursor_of_its_page(first: PageCursor, last: PageCursor) -> None:
    found = page_links("/x", [first, last], "status=1")
    query = found["next"].removeprefix("/x?")
    assert query.startswith("status=1&")
    assert query_of(query) == CursorQuery(older=last)
    assert query_of(found["previous"].removeprefix("/x?")) == CursorQuery(newer=first)


def test_an_empty_page_has_no_links() -> None:
    assert page_links("/x", []) == {}


@given(st.text(alphabet=st.characters(max_codepoint=127, exclude_characters="&;+#")))
def test_a_malformed_cursor_stands_for_the_first_page(text: str) -> None:
    assert query_of(f"next={text}") in (CursorQuery(), query_of(f"next={text}"))


def test_two_cursors_are_refused() -> None:
    with pytest.raises(BadRequest, match="can not decide"):
        query_of("next=a&previous=b")
