import pytest

from penstock.model.errors import PenstockError
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.errors import ApiError, ErrorKind

TABLE = {name: kind for name, kind in vars(errors).items() if isinstance(kind, ErrorKind)}


def test_an_error_has_the_codes_and_text_of_its_row() -> None:
    error = errors.STREAM_NOT_FOUND.error()
    assert isinstance(error, PenstockError)
    assert (error.status, error.err_code, error.description) == (404, 10059, "stream not found")
    assert error.document() == {
        "code": 404,
        "err_code": 10059,
        "description": "stream not found",
    }
    assert str(error) == "stream not found (10059)"


def test_a_sentence_takes_its_facts() -> None:
    assert errors.WRONG_LAST_SEQUENCE.error(7).description == "wrong last sequence: 7"
    assert errors.BAD_JSON.error("no end").description == "invalid JSON: no end"


def test_every_raise_makes_an_error_of_its_own() -> None:
    def refuse() -> None:
        raise errors.BAD_REQUEST.error()

    with pytest.raises(ApiError) as first:
        refuse()
    with pytest.raises(ApiError) as second:
        refuse()
    assert first.value is not second.value


def test_no_two_lines_have_one_number() -> None:
    numbers = [kind.err_code for kind in TABLE.values()]
    assert len(set(numbers)) == len(numbers) > 80


@pytest.mark.parametrize("name", TABLE)
def test_every_row_is_an_error_reply(name: str) -> None:
    kind = TABLE[name]
    assert kind.code in (400, 404, 412, 429, 500, 503)
    assert 10002 < kind.err_code < 10300
    assert kind.sentence
