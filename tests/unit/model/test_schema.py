import pyarrow as pa
import pytest

from penstock.model import schema
from penstock.model.errors import SchemaInvalid


@pytest.mark.feature("F25")
@pytest.mark.parametrize(("name", "type_"), schema.TYPES.items())
def test_every_type_is_read_and_written_by_its_name(name: str, type_: pa.DataType) -> None:
    assert schema.field(f"a:{name}") == pa.field("a", type_, nullable=False)
    assert schema.field(f"a:{name.upper()}?") == pa.field("a", type_, nullable=True)
    assert schema.type_name(type_) == name


def test_there_are_thirteen_types() -> None:
    assert len(schema.TYPES) == 13


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("i8", "int8"),
        ("u64", "uint64"),
        ("f32", "float32"),
        ("utf8", "string"),
        ("boolean", "bool"),
    ],
)
def test_short_names_are_known(alias: str, name: str) -> None:
    assert schema.field(f"a:{alias}") == schema.field(f"a:{name}")


def test_a_name_may_hold_a_colon() -> None:
    assert schema.field("a:b:int8").name == "a:b"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a", "column 'a' must be written name:type, such as id:int64"),
        ("a:decimal", "column 'a' has the unknown type 'decimal'; known: int8, int16"),
    ],
)
def test_a_malformed_column_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        schema.field(text)
    assert str(caught.value).startswith(complaint)


@pytest.mark.feature("F25")
@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ([], "1 to 1000 columns, not 0"),
        (["a"] * 1001, "1 to 1000 columns, not 1001"),
        (["a", "b", "A"], "column 'A' is there twice"),
        (["__a"], "names that start with '__' belong to Penstock"),
        (["offset"], "belongs to the envelope"),
        (["Payload"], "belongs to the envelope"),
        ([""], "must be 1 to 255 printable characters"),
        (["a\n"], "must be 1 to 255 printable characters"),
        (["a" * 256], "must be 1 to 255 printable characters"),
    ],
)
def test_names_that_break_the_rules_are_refused(names: list[str], complaint: str) -> None:
    with pytest.raises(SchemaInvalid, match=complaint):
        schema.schema(pa.field(name, pa.int8()) for name in names)


def test_a_schema_keeps_the_order_of_its_columns() -> None:
    parsed = schema.schema(map(schema.field, ["b:int64", "a:string?"]))
    assert parsed == pa.schema([pa.field("b", pa.int64(), False), pa.field("a", pa.string())])
