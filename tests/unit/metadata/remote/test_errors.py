"""Errors are mapped to statuses, and rebuilt from the trailing metadata."""

from __future__ import annotations

import grpc
import pytest

from penstock.formats.rpc import ERROR_CODE, ERROR_FACTS, message
from penstock.metadata.interface import MetadataUnavailable
from penstock.metadata.remote.errors import MAPPINGS, TEXT_CHARACTERS_MAX, rebuilt, status_of
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
    assert {type(error) for error, _ in CASES} == set(MAPPINGS)


@pytest.mark.feature("F32")
@pytest.mark.parametrize(("error", "code"), CASES, ids=str)
def test_an_error_has_its_status_and_is_rebuilt_from_its_facts(
    error: PenstockError, code: grpc.StatusCode
) -> None:
    status = status_of(error)
    assert (status.status, status.details) == (code, str(error))
    assert dict(status.metadata)[ERROR_CODE] == error.code
    again = rebuilt(status.metadata)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_subclass_is_sent_as_its_listed_base_class() -> None:
    class Narrower(MetadataUnavailable):
        pass

    status = status_of(Narrower("etcd"))
    assert status.status is Code.UNAVAILABLE
    assert type(rebuilt(status.metadata)) is MetadataUnavailable


def test_an_unlisted_error_is_internal_and_has_its_sentence() -> None:
    error = LogReadOnly("t", "the disk is full")
    assert status_of(error) == (Code.INTERNAL, str(error), ((ERROR_CODE, "log_read_only"),))


def test_long_texts_are_cut_so_that_they_fit_into_the_metadata_of_a_call() -> None:
    status = status_of(NameInvalid("topic", "𝄞" * 100_000, "short"))
    assert len(status.details) == TEXT_CHARACTERS_MAX
    assert len(dict(status.metadata)[ERROR_FACTS]) < 5 * TEXT_CHARACTERS_MAX
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
def test_invalid_facts_are_ignored(data: bytes) -> None:
    assert rebuilt([(ERROR_FACTS, data)]) is None


def test_metadata_without_facts_is_no_error() -> None:
    assert rebuilt(None) is None
    assert rebuilt([("other", "text")]) is None
