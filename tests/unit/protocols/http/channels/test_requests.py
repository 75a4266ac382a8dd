"""Requests to the channel API."""

import pytest

from penstock.model.errors import PenstockError
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels.requests import form, same
from tests.unit.protocols.http.client import received_request

FORM = (b"content-type", b"application/x-www-form-urlencoded; charset=utf-8")


async def test_the_first_value_of_each_form_field_is_used() -> None:
    given = received_request(b"a=1&a=2&b=%C3%A4+x&c=", b"", FORM)
    assert await form(given, Bodies(100, 100)) == {"a": "1", "b": "ä x", "c": ""}


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
def test_tokens_are_compared_whole() -> None:
    assert same("secret", "secret")
    assert not any(same(given, "secret") for given in (None, "", "Secret", "secre", "secrets"))
    assert same("ä", "ä")
