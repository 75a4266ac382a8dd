"""The gRPC services of a broker: the messages and calls that penstock.proto declares."""

from __future__ import annotations

from typing import Any, Final

from penstock.formats import protobuf

ERROR_CODE: Final = "penstock-code"
"""The trailing metadata of a call that failed: the stable code of the error."""

ERROR_FACTS: Final = "penstock-error-bin"
"""The trailing metadata of a call that failed: an `ErrorFacts`."""

MESSAGES, METHODS = protobuf.load("penstock.formats", "penstock.binpb")
"""Message classes, and calls, by name."""


def message(kind: str, /, **fields: Any) -> Any:
    """A new message; a field whose value is None is left unset."""
    return MESSAGES[kind](**fields)


def parse(kind: str, data: bytes) -> Any:
    """Decode a message; raises google.protobuf's DecodeError."""
    return MESSAGES[kind].FromString(data)
