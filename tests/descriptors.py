"""Compiles the .proto files of the package: `python -m tests.descriptors` (`make proto`).

Each `x.proto` has beside it `x.binpb`, the compiled FileDescriptorSet that Penstock loads. So the
compiler is needed for development only, and no generated code ties Penstock to a protobuf version.
docs/penstock.proto is a copy of the file of the gRPC services, for readers and for other clients.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from tests.source_figures import PACKAGE, ROOT

SUFFIX: Final = ".binpb"
PROTO_FILES: Final = sorted(PACKAGE.rglob("*.proto"))
SERVICES: Final = PACKAGE / "formats" / "penstock.proto"
PUBLISHED: Final = ROOT / "docs" / "penstock.proto"


def compiled(proto: Path) -> bytes:
    """Compile a file; returns its serialized FileDescriptorSet, with what it imports."""
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__path__[0]) / "_proto"
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "descriptors"
        arguments = [
            "protoc",
            f"-I{proto.parent}",
            f"-I{well_known}",
            "--include_imports",
            f"--descriptor_set_out={output}",
            proto.name,
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit(f"{proto} cannot be compiled")
        return output.read_bytes()


def main() -> None:
    """Write the descriptor set of every .proto file, and the published copy of the services."""
    for proto in PROTO_FILES:
        proto.with_suffix(SUFFIX).write_bytes(compiled(proto))
    PUBLISHED.write_bytes(SERVICES.read_bytes())


if __name__ == "__main__":
    main()
