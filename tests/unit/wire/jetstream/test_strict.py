from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from penstock.wire.jetstream.errors import ApiError
from penstock.wire.jetstream.strict import CHOICE, Duration, Int64, Time, Uint64, read


class Inner(Struct, forbid_unknown_fields=True):
    size: Int64 = 0


class Outer(Struct, forbid_unknown_fields=True):
    name: str = ""
    on: bool = False
    count: Int64 = 0
    sequence: Uint64 = 0
    wait: Duration = 0
    waits: tuple[Duration, ...] = ()
    words: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    inner: Inner | None = None
    time: Time = ""
    choice: Annotated[Literal["a", "b"], Meta(title=CHOICE)] = "a"
    other: Annotated[Literal["a"], Meta(title="unknown thing: {}")] = "a"


_CHARACTER = "invalid character '{}' looking for beginning of {} at offset {}"


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b' { "name": null, "inner": null } '])
def test_missing_and_null_fields_have_their_defaults(body: bytes) -> None:
    assert read(body, Outer, "Request") == Outer()


def test_a_document_is_decoded_in_full() -> None:
    body = b'{"name":"x","count":-5,"waits":[1,2],"labels":{"k":"v"},"inner":{"size":3}}'
    assert read(body, Outer, "Request") == Outer(
        name="x", count=-5, waits=(1, 2), labels={"k": "v"}, inner=Inner(3)
    )


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b'{"name":', "unexpected EOF"),
        (b"{x", "invalid character 'x' looking for beginning of object key string at offset 2"),
        (b'{"name":"A",}', _CHARACTER.format("}", "object key string", 13)),
        (b"xx", _CHARACTER.format("x", "value", 1)),
        (b"[1]", "json: cannot unmarshal array into Go value of type server.Request"),
        (b'"x"', "json: cannot unmarshal string into Go value of type server.Request"),
        (b"5", "json: cannot unmarshal number into Go value of type server.Request"),
        (b"true", "json: cannot unmarshal bool into Go value of type server.Request"),
        (b'{"foo":1}', 'json: unknown field "foo"'),
        (b'{"inner":{"foo":1}}', 'json: unknown field "foo"'),
        (
            b'{"count":"a"}',
            "json: cannot unmarshal string into Go struct field Request.count of type int64",
        ),
        (
            b'{"count":1.5}',
            "json: cannot unmarshal number 1.5 into Go struct field Request.count of type int64",
        ),
        (
            b'{"sequence":-1}',
            "json: cannot unmarshal number -1 into Go struct field Request.sequence of type uint64",
        ),
        (
            b'{"wait":"1s"}',
            "json: cannot unmarshal string into Go struct field Request.wait of type time.Duration",
        ),
        (
            b'{"on":1}',
            "json: cannot unmarshal number into Go struct field Request.on of type bool",
        ),
        (
            b'{"name":{}}',
            "json: cannot unmarshal object into Go struct field Request.name of type string",
        ),
        (
            b'{"words":"x"}',
            "json: cannot unmarshal string into Go struct field Request.words of type []string",
        ),
        (
            b'{"words":[true]}',
            "json: cannot unmarshal bool into Request.words.0 of type string",
        ),
        (
            b'{"inner":[]}',
            "json: cannot unmarshal array into Go struct field Request.inner of type server.Inner",
        ),
        (
            b'{"inner":{"size":"x"}}',
            "json: cannot unmarshal string into Go struct field Request.inner.size of type int64",
        ),
        (b'{"choice":"foo"}', 'can not unmarshal "\\"foo\\""'),
        (b'{"choice":5}', 'can not unmarshal "5"'),
        (b'{"choice":null}', 'can not unmarshal "null"'),
        (b'{"other":"z"}', 'unknown thing: "z"'),
        (b'{"other":null}', "unknown thing: null"),
    ],
)
def test_an_error_names_the_value_found_and_the_expected_type(body: bytes, complaint: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(body, Outer, "Request")
    assert refused.value.document() == {
        "code": 400,
        "err_code": 10025,
        "description": f"invalid JSON: {complaint}",
    }


@pytest.mark.parametrize(
    "body",
    [
        b'{"time":"bad"}',
        b'{"time":5}',
        b'{"labels":{"a":1}}',
        b'{"count":99999999999999999999999}',
        b'{"name":"\xff"}',
        b"{} x",
        b'{"name":"x",}',
        b"[" * 20_000,
    ],
)
def test_whatever_is_wrong_is_refused_as_json(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        read(body, Outer, "Request")
    assert refused.value.err_code == 10025
