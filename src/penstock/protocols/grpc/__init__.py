"""The gRPC protocol: the services Admin and OffsetRegistry, which penstock.proto declares.

`GrpcServer` answers calls by handlers; `admin_handlers` and `offset_handlers` make them.
"""

from penstock.protocols.grpc.handlers import Handlers, admin_handlers, offset_handlers
from penstock.protocols.grpc.server import GrpcServer

__all__ = ["GrpcServer", "Handlers", "admin_handlers", "offset_handlers"]
