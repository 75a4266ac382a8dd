"""SeaweedFS from PyPI: an S3 server that enforces conditional writes and checksums."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.servers.running import BIN, Running, free_ports
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

BUCKET = "penstock"
IDENTITIES = {
    "identities": [
        {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}
PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a run; every test has a prefix of its own."""
    directory = tmp_path_factory.mktemp("seaweedfs")
    (directory / "s3.json").write_text(json.dumps(IDENTITIES))
    (directory / "data").mkdir()
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    command = [
        str(BIN / "weed"),
        "server",
        "-dir=data",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-s3",
        "-s3.config=s3.json",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=100",
        "-master.volumeSizeLimitMB=256",
        "-master.telemetry=false",
        f"-filer.localSocket={directory / 'filer.sock'}",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    server = S3Server(ports["s3.port"], BUCKET)
    encryption = {"WEED_S3_SSE_KEY": "only for tests"}
    with Running(command, directory, directory / "log", encryption) as running:
        running.wait_until(lambda: server.ask("PUT", f"/{BUCKET}").status == 200)
        # The first object takes seconds: volumes are made for the bucket.
        with server.files().open_output_stream(f"{BUCKET}/first") as first:
            first.write(b"first")
        yield server
