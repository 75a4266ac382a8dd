"""`rclone serve s3` from PyPI: a light S3 server that ignores every condition and checksum."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.running import BIN, Running, free_ports
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

BUCKET = "penstock"


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a run; every test has a prefix of its own."""
    directory = tmp_path_factory.mktemp("rclone")
    (directory / "data" / BUCKET).mkdir(parents=True)
    (port,) = free_ports(1)
    command = [
        str(BIN / "rclone"),
        "serve",
        "s3",
        f"--addr=127.0.0.1:{port}",
        f"--auth-key={ACCESS_KEY},{SECRET_KEY}",
        "--vfs-cache-mode=off",
        f"--config={directory / 'rclone.conf'}",
        "data",
    ]
    server = S3Server(port, BUCKET, directory / "data")
    with Running(command, directory, directory / "log") as running:
        running.wait_until(lambda: server.ask("GET", f"/{BUCKET}").status == 200)
        yield server
