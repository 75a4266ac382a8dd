"""All tests."""

import os

# Read when gRPC is imported. With it, a process that is forked while gRPC is at work, as Spark's
# gateway is, now and then dies before it runs its program.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
