import pytest

from penstock.formats import protobuf

CLASSES = protobuf.classes(
    "test.v1",
    {
        "Outer": "inner:1:*Inner either/number:2:int64 either/text:3:string"
        " when:4:google.protobuf.Timestamp",
        "Inner": "share:1:double",
    },
)


def test_a_message_is_the_bytes_its_description_says() -> None:
    inner = CLASSES["Inner"](share=0.5)
    when = CLASSES["google.protobuf.Timestamp"](seconds=3, nanos=4)
    outer = CLASSES["Outer"](inner=[inner], text="é", when=when)
    assert outer.SerializeToString() == (
        b"\x0a\x09\x09\x00\x00\x00\x00\x00\x00\xe0\x3f\x1a\x02\xc3\xa9\x22\x04\x08\x03\x10\x04"
    )
    assert CLASSES["Outer"].FromString(outer.SerializeToString()) == outer


def test_a_member_of_a_union_is_sent_though_it_is_0_and_puts_out_the_others() -> None:
    outer = CLASSES["Outer"](text="a")
    outer.number = 0
    assert outer.SerializeToString() == b"\x10\x00"
    assert CLASSES["Outer"].FromString(b"\x10\x00").WhichOneof("either") == "number"


def test_two_packages_may_describe_the_same_names() -> None:
    again = protobuf.classes("test.v1", {"Inner": "other:7:bool"})
    assert again["Inner"](other=True).SerializeToString() == b"\x38\x01"
    with pytest.raises(ValueError, match="other"):
        CLASSES["Inner"](other=True)
