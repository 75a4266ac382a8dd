"""Loads Protocol Buffers messages and services from a compiled .proto file of the package.

`make proto` compiles `x.proto` to the descriptor set `x.binpb` beside it, which this module loads.
There is no generated code, which would tie Penstock to a version of protobuf.
"""

from __future__ import annotations

import pkgutil
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Method(NamedTuple):
    """A call: its path, and the classes of its request and response."""

    path: str
    request: Any
    response: Any


class Descriptors(NamedTuple):
    """The content of a .proto file."""

    messages: dict[str, Any]
    """Message classes by name; those of imported files by their full names."""
    methods: dict[str, Method]
    """The calls of all services by name."""


def load(package: str, file_name: str) -> Descriptors:
    """Load the descriptor set `file_name` of a Python package."""
    data = pkgutil.get_data(package, file_name)
    assert data is not None, f"{package} was installed without {file_name}"
    files = descriptor_pb2.FileDescriptorSet.FromString(data).file
    # A pool of its own: generated messages of the same names may exist in the same process.
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    main = pool.FindFileByName(files[-1].name)
    classes = {
        message.full_name: message_factory.GetMessageClass(message)
        for file in files
        for message in pool.FindFileByName(file.name).message_types_by_name.values()
    }
    methods = {
        method.name: Method(
            f"/{service.full_name}/{method.name}",
            classes[method.input_type.full_name],
            classes[method.output_type.full_name],
        )
        for service in main.services_by_name.values()
        for method in service.methods
    }
    prefix = f"{main.package}."
    return Descriptors({name.removeprefix(prefix): kind for name, kind in classes.items()}, methods)
