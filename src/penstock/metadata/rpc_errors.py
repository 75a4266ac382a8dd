"""Errors over gRPC: which status each has, and the same error again on the other side.

A status and a sentence are for everybody; the facts that an error is made from travel in the
trailing metadata, so that a remote client raises what the broker raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from penstock.formats.rpc import ERROR_FACTS, message, parse
from penstock.metadata.interface import MetadataUnavailable
from penstock.model.errors import (
    FetchInvalid,
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

TEXT_CHARACTERS_MAX: Final = 400
"""Of a sentence or a fact: all metadata of a call must fit into 8 KiB."""

_Code: Final = grpc.StatusCode


class Status(NamedTuple):
    """What a failed call ends with."""

    code: Any
    details: str
    metadata: tuple[tuple[str, bytes], ...]


class _Form(NamedTuple):
    code: Any
    facts: Callable[[Any], Iterable[object]]
    build: Callable[..., PenstockError]


def _sentence(error: PenstockError) -> tuple[str]:
    return (str(error),)


def _resource(error: Any) -> tuple[str, str]:
    return error.kind, error.name


def _in_use(error: ResourceInUse) -> tuple[str, str, str]:
    return error.kind, error.name, str(error).removeprefix(f"{error.kind} {error.name} ")


def _overloaded(error: Overloaded) -> tuple[str, str, int]:
    what = str(error).removesuffix(f": {error.limit} is {error.most}; retry later")
    return what, error.limit, error.most


def _build_gone(topic: str, partition: str, offset: str, earliest: str) -> OffsetGone:
    return OffsetGone(topic, partition or None, Offset(int(offset)), Offset(int(earliest)))


def _build_overloaded(what: str, limit: str, most: str) -> Overloaded:
    return Overloaded(what, limit, int(most))


FORMS: Final[dict[type[PenstockError], _Form]] = {
    ResourceUnknown: _Form(_Code.NOT_FOUND, _resource, ResourceUnknown),
    ResourceExists: _Form(_Code.ALREADY_EXISTS, _resource, ResourceExists),
    ResourceInUse: _Form(_Code.FAILED_PRECONDITION, _in_use, ResourceInUse),
    NameInvalid: _Form(_Code.INVALID_ARGUMENT, lambda e: (e.kind, e.name, e.rule), NameInvalid),
    SchemaInvalid: _Form(_Code.INVALID_ARGUMENT, _sentence, SchemaInvalid),
    PartitionInvalid: _Form(_Code.INVALID_ARGUMENT, _sentence, PartitionInvalid),
    FetchInvalid: _Form(_Code.INVALID_ARGUMENT, _sentence, FetchInvalid),
    OffsetGone: _Form(
        _Code.OUT_OF_RANGE,
        lambda e: (e.topic, "" if e.partition is None else e.partition, e.offset, e.earliest),
        _build_gone,
    ),
    OwnedElsewhere: _Form(
        _Code.FAILED_PRECONDITION, lambda e: (e.topic, e.broker, e.address), OwnedElsewhere
    ),
    Overloaded: _Form(_Code.RESOURCE_EXHAUSTED, _overloaded, _build_overloaded),
    MetadataUnavailable: _Form(_Code.UNAVAILABLE, _sentence, MetadataUnavailable),
}
_BY_NAME: Final = {kind.__name__: form for kind, form in FORMS.items()}


def status_of(error: PenstockError) -> Status:
    """The status of an error; INTERNAL when it has no place in the table."""
    details = _cut(str(error))
    kind = next((kind for kind in type(error).__mro__ if kind in FORMS), None)
    if kind is None:
        return Status(_Code.INTERNAL, details, ())
    form = FORMS[kind]
    facts = [_cut(str(fact)) for fact in form.facts(error)]
    data = message("ErrorFacts", error=kind.__name__, facts=facts).SerializeToString()
    return Status(form.code, details, ((ERROR_FACTS, data),))


def rebuilt(metadata: Iterable[tuple[str, str | bytes]] | None) -> PenstockError | None:
    """The error that the broker raised; None when the metadata does not tell one we know."""
    data = dict(metadata or ()).get(ERROR_FACTS)
    if not isinstance(data, bytes):
        return None
    try:
        sent = parse("ErrorFacts", data)
        form = _BY_NAME.get(sent.error)
        return None if form is None else form.build(*sent.facts)
    except (DecodeError, TypeError, ValueError):
        return None


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 1]}…"
