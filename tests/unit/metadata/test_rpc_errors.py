"""Every error that has a status comes out on the other side as it went in."""

from __future__ import annotations

import grpc
import pytest

from penstock.formats.rpc import ERROR_FACTS, message
from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.rpc_errors import FORMS, TEXT_CHARACTERS_MAX, rebuilt, status_of
from penstock.model.errors import (
    FetchInvalid,
    LogReadOnly,
    NameInvalid,
    OffsetGone,
    Overloaded,
    OwnedElsewhere,
    PartitionInvalid,
    PenstockError,
    ResourceExists,
    ResourceInUse,
    ResourceUnknown,
    SchemaInvalid,
)
from penstock.model.units import Offset

Code = grpc.StatusCode
CASES = [
    (ResourceUnknown("topic", "tenants/a/namespaces/b/topics/ü"), Code.NOT_FOUND),
    (ResourceExists("tenant", "tenants/a"), Code.ALREADY_EXISTS),
    (ResourceInUse("tenant", "tenants/a", "has namespaces"), Code.FAILED_PRECONDITION),
    (NameInvalid("topic", "a b", "short"), Code.INVALID_ARGUMENT),
    (SchemaInvalid("no columns"), Code.INVALID_ARGUMENT),
    (PartitionInvalid("no value"), Code.INVALID_ARGUMENT),
    (FetchInvalid("offset -1"), Code.INVALID_ARGUMENT),
    (OffsetGone("t", None, Offset(3), Offset(9)), Code.OUT_OF_RANGE),
    (OffsetGone("t", "eu", Offset(3), Offset(9)), Code.OUT_OF_RANGE),
    (OwnedElsewhere("t", "b1", "127.0.0.1:8080"), Code.FAILED_PRECONDITION),
    (Overloaded("too many: calls", "grpc.max_calls", 7), Code.RESOURCE_EXHAUSTED),
    (MetadataUnavailable("etcd is away"), Code.UNAVAILABLE),
]


def test_every_error_of_the_table_is_tried() -> None:
    assert {type(error) for error, _ in CASES} == set(FORMS)


@pytest.mark.feature("F32")
@pytest.mark.parametrize(("error", "code"), CASES, ids=str)
def test_an_error_has_its_status_and_is_rebuilt_from_its_facts(
    error: PenstockError, code: grpc.StatusCode
) -> None:
    status = status_of(error)
    assert (status.code, status.details) == (code, str(error))
    again = rebuilt(status.metadata)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_kind_of_a_known_error_is_told_as_that() -> None:
    class Narrower(MetadataUnavailable):
        pass

    status = status_of(Narrower("etcd"))
    assert status.code is Code.UNAVAILABLE
    assert type(rebuilt(status.metadata)) is MetadataUnavailable


def test_any_other_error_is_internal_and_its_sentence_is_told() -> None:
    error = LogReadOnly("t", "the disk is full")
    assert status_of(error) == (Code.INTERNAL, str(error), ())


def test_long_texts_are_cut_so_that_they_fit_into_the_metadata_of_a_call() -> None:
    status = status_of(NameInvalid("topic", "𝄞" * 100_000, "short"))
    assert len(status.details) == TEXT_CHARACTERS_MAX
    assert len(status.metadata[0][1]) < 5 * TEXT_CHARACTERS_MAX
    assert isinstance(rebuilt(status.metadata), NameInvalid)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"",
        message("ErrorFacts", error="Unheard", facts=["a"]).SerializeToString(),
        message("ErrorFacts", error="ResourceUnknown", facts=["a"]).SerializeToString(),
        message("ErrorFacts", error="OffsetGone", facts=list("abcd")).SerializeToString(),
    ],
)
def test_facts_that_make_no_error_are_passed_over(data: bytes) -> None:
    assert rebuilt([(ERROR_FACTS, data)]) is None


def test_a_failure_without_facts_tells_no_error() -> None:
    assert rebuilt(None) is None
    assert rebuilt([("other", "text")]) is None
