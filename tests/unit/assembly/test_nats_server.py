"""The modules that a NATS server without streams loads."""

import subprocess
import sys


def test_a_server_without_streams_loads_neither_storage_nor_pyarrow() -> None:
    program = "import sys, penstock.assembly.nats_server as _; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = set(output.stdout.decode().split())
    assert not loaded & {"pyarrow", "penstock.streams", "penstock.topics", "penstock.log"}
