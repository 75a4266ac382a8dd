"""Protocol Buffers messages that are described in a table and built at run time.

There is no generated code, which would tie us to a version of protobuf. A field is written
`name:number:type`; `*` before a type means repeated, `union/` before a name a member of that oneof,
which is sent even when it is 0. A type with a dot is one of Google's well-known ones. Enumerations
travel as int32 does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    empty_pb2,
    message_factory,
    timestamp_pb2,
)

_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}
_WELL_KNOWN: Final = (empty_pb2.DESCRIPTOR, timestamp_pb2.DESCRIPTOR)


class Method(NamedTuple):
    """A call: its path, and the classes of its request and response."""

    path: str
    request: Any
    response: Any


def classes(package: str, messages: Mapping[str, str]) -> dict[str, Any]:
    """The classes of these messages, and of the well-known ones by their full names."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    # A pool of our own: generated messages of the same names may live in the same process.
    pool = descriptor_pool.DescriptorPool()
    for known in _WELL_KNOWN:
        pool.AddSerializedFile(known.serialized_pb)
        file.dependency.append(known.name)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields.split():
            _add_field(package, message, *field.split(":"))
    pool.AddSerializedFile(file.SerializeToString())
    names = {name: f"{package}.{name}" for name in messages}
    names |= {name: name for known in _WELL_KNOWN for name in _full_names(known)}
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(full))
        for name, full in names.items()
    }


def _full_names(file: Any) -> list[str]:
    return [message.full_name for message in file.message_types_by_name.values()]


def _add_field(package: str, message: Any, name: str, number: str, kind: str) -> None:
    union, _, name = name.rpartition("/")
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if kind.startswith("*") else _Field.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{kind}" if "." in kind else f".{package}.{kind}"
    if union:
        if not message.oneof_decl:
            message.oneof_decl.add(name=union)
        field.oneof_index = 0
