"""Maps errors to gRPC statuses, and rebuilds them at the client.

A failed call ends with a status, a sentence, and trailing metadata: the error's code, and the facts
it is built from. A remote client raises the same error from these facts as the broker raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from penstock.formats.rpc import ERROR_CODE, ERROR_FACTS, message, parse
from penstock.metadata.interface import MetadataUnavailable
from penstock.model import errors
from penstock.model.errors import PenstockError

TEXT_CHARACTERS_MAX: Final = 400
"""Limit of a sentence and of each fact, since all metadata of a call must fit into 8 KiB."""

_Code: Final = grpc.StatusCode


class CallStatus(NamedTuple):
    """How a failed call ends; the fields are the parameters of grpc's `abort`."""

    status: Any
    details: str
    metadata: tuple[tuple[str, str | bytes], ...]


class _Mapping(NamedTuple):
    status: Any
    facts: tuple[str, ...] = ()
    """The attributes that its constructor takes, in order; without any, it takes its sentence."""


MAPPINGS: Final[dict[type[PenstockError], _Mapping]] = {
    errors.ResourceUnknown: _Mapping(_Code.NOT_FOUND, ("kind", "name")),
    errors.ResourceExists: _Mapping(_Code.ALREADY_EXISTS, ("kind", "name")),
    errors.ResourceInUse: _Mapping(_Code.FAILED_PRECONDITION, ("kind", "name", "sentence")),
    errors.NameInvalid: _Mapping(_Code.INVALID_ARGUMENT, ("kind", "name", "rule")),
    errors.SchemaInvalid: _Mapping(_Code.INVALID_ARGUMENT),
    errors.PartitionInvalid: _Mapping(_Code.INVALID_ARGUMENT),
    errors.FetchInvalid: _Mapping(_Code.INVALID_ARGUMENT),
    errors.OffsetGone: _Mapping(_Code.OUT_OF_RANGE, ("topic", "partition", "offset", "earliest")),
    errors.OwnedElsewhere: _Mapping(_Code.FAILED_PRECONDITION, ("topic", "broker", "address")),
    errors.Overloaded: _Mapping(_Code.RESOURCE_EXHAUSTED, ("what", "limit", "most")),
    MetadataUnavailable: _Mapping(_Code.UNAVAILABLE),
}
"""Statuses by class. An error whose class and base classes are not listed is INTERNAL."""

_BY_NAME: Final = {kind.__name__: kind for kind in MAPPINGS}
_FROM_TEXT: Final[dict[str, Callable[[str], object]]] = {
    "partition": lambda text: text or None,
    "offset": int,
    "earliest": int,
    "most": int,
}
"""How to read facts that are not text."""


def status_of(error: PenstockError) -> CallStatus:
    """The status, sentence and metadata of an error."""
    details = _cut(str(error))
    code = (ERROR_CODE, error.code)
    kind = next((kind for kind in type(error).__mro__ if kind in MAPPINGS), None)
    if kind is None:
        return CallStatus(_Code.INTERNAL, details, (code,))
    mapping = MAPPINGS[kind]
    values = [getattr(error, fact) for fact in mapping.facts] or [error]
    facts = ["" if value is None else _cut(str(value)) for value in values]
    data = message("ErrorFacts", error=kind.__name__, facts=facts).SerializeToString()
    return CallStatus(mapping.status, details, (code, (ERROR_FACTS, data)))


def rebuilt(metadata: Iterable[tuple[str, str | bytes]] | None) -> PenstockError | None:
    """Rebuild the error that the broker raised; None if the metadata holds no known error."""
    data = dict(metadata or ()).get(ERROR_FACTS)
    if not isinstance(data, bytes):
        return None
    try:
        sent = parse("ErrorFacts", data)
        kind = _BY_NAME[sent.error]
        names = MAPPINGS[kind].facts or ("sentence",)
        return kind(
            *(_FROM_TEXT.get(name, str)(fact) for name, fact in zip(names, sent.facts, strict=True))
        )
    except (DecodeError, KeyError, ValueError):
        return None


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 1]}…"
