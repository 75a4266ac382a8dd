import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import partition_value
from penstock.model.errors import PartitionInvalid
from penstock.model.partition_value import PartitionValue

VALUES = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda v: PartitionValue("Int64", v)),
    st.integers(0, 255).map(lambda v: PartitionValue("UInt8", v)),
    st.text().map(lambda v: PartitionValue("String", v)),
    st.binary().map(lambda v: PartitionValue("Bytes", v)),
    st.booleans().map(lambda v: PartitionValue("Boolean", v)),
)


@pytest.mark.feature("F26")
@given(VALUES)
def test_a_value_is_read_back_from_its_tagged_form_and_its_text(value: PartitionValue) -> None:
    assert partition_value.of_json(json.loads(json.dumps(value.to_json()))) == value
    assert partition_value.of_text(value.type, str(value)) == value
    assert partition_value.of_plain(value.type, value.value) == value


def test_the_tagged_form_is_that_of_the_reference() -> None:
    assert PartitionValue("Int64", 100).to_json() == {"Int64": 100}
    assert PartitionValue("Bytes", b"\1\2").to_json() == {"Bytes": [1, 2]}
    assert str(PartitionValue("Bytes", b"\1\2")) == "AQI="
    assert str(PartitionValue("Boolean", True)) == "true"


def test_values_of_different_kinds_are_different() -> None:
    assert PartitionValue("Int64", 7) != PartitionValue("UInt64", 7)


@pytest.mark.parametrize(
    ("tagged", "complaint"),
    [
        (7, "partition value 7 must be an object with one kind"),
        ({}, "must be an object with one kind"),
        ({"Int64": 1, "String": "a"}, "must be an object with one kind"),
        ({"Float64": 1.0}, "unknown kind 'Float64'; known: Int8"),
        ({"Int8": 128}, "partition value 128 is not of the kind Int8"),
        ({"UInt8": -1}, "is not of the kind UInt8"),
        ({"Int64": True}, "partition value true is not of the kind Int64"),
        ({"Int64": 1.0}, "is not of the kind Int64"),
        ({"String": 1}, "is not of the kind String"),
        ({"Boolean": 1}, "is not of the kind Boolean"),
        ({"Bytes": [256]}, "is not of the kind Bytes"),
        ({"Bytes": [True]}, "is not of the kind Bytes"),
        ({"Bytes": "AQI="}, "is not of the kind Bytes"),
    ],
)
def test_a_malformed_value_is_refused(tagged: object, complaint: str) -> None:
    with pytest.raises(PartitionInvalid) as caught:
        partition_value.of_json(tagged)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (pa.int64(), "seven"),
        (pa.int64(), "--7"),
        (pa.int64(), "\u0667"),
        (pa.int64(), "9" * 5000),
        (pa.int64(), "-" + "9" * 5000),
        (pa.uint8(), "256"),
        (pa.bool_(), "yes"),
        (pa.binary(), "?"),
    ],
)
def test_a_malformed_text_is_refused(type_: pa.DataType, text: str) -> None:
    with pytest.raises(PartitionInvalid, match="is not of the kind"):
        partition_value.of_text(type_, text)


def test_a_topic_cannot_be_partitioned_by_a_float_column() -> None:
    assert partition_value.kind_of(pa.float64()) is None
    assert partition_value.kind_of(pa.uint16()) == "UInt16"
