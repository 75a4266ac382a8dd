"""The messages of the package, as their .proto files declare them."""

from pathlib import Path

import pytest

from penstock.formats import protobuf, rpc
from tests import descriptors


@pytest.mark.parametrize("proto", descriptors.PROTO_FILES, ids=lambda proto: proto.name)
def test_a_descriptor_set_is_compiled_from_its_proto_file(proto: Path) -> None:
    compiled = descriptors.compiled(proto)
    assert proto.with_suffix(descriptors.SUFFIX).read_bytes() == compiled, "run `make proto`"


def test_the_published_proto_file_is_the_one_that_is_compiled() -> None:
    published, compiled = descriptors.PUBLISHED, descriptors.SERVICES
    assert published.read_bytes() == compiled.read_bytes(), "run `make proto`"


def test_a_message_has_the_bytes_of_its_declaration() -> None:
    location = rpc.message(
        "OffsetLocationRequest",
        topic="é",
        partition_value={"int64_value": 0},
        offset=3,
        deadline={"seconds": 3, "nanos": 4},
    )
    data = b"\x0a\x02\xc3\xa9\x12\x02\x20\x00\x18\x03\x22\x04\x08\x03\x10\x04"
    assert location.SerializeToString() == data
    assert rpc.parse("OffsetLocationRequest", data) == location


def test_a_member_of_a_oneof_is_encoded_even_if_it_is_0_and_replaces_the_others() -> None:
    value = rpc.message("PartitionValue", string_value="a")
    value.int64_value = 0
    assert value.SerializeToString() == b"\x20\x00"
    assert rpc.parse("PartitionValue", b"\x20\x00").WhichOneof("value") == "int64_value"


def test_the_messages_of_two_loads_are_independent() -> None:
    again = protobuf.load("penstock.formats", "penstock.binpb").messages["ErrorFacts"]
    assert again is not rpc.MESSAGES["ErrorFacts"]
    assert again(error="a").SerializeToString() == b"\x0a\x01a"
