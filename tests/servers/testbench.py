"""Google's testbench of Cloud Storage, where somebody has installed it."""

from __future__ import annotations

import http.client
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from penstock.config import CloudSection, GcsSection
from tests.servers.running import Running, free_ports

PROGRAM: Final = shutil.which("storage-testbench")
BUCKET: Final = "penstock"
APP: Final = """\
from testbench import proto2rest, run

without_zero = proto2rest.object_as_rest
proto2rest.object_as_rest = lambda found: {"size": "0", **without_zero(found)}
"""
"""It leaves out the size of an empty object, which the service tells."""


class GcsServer(NamedTuple):
    """A server on a loopback port, with a bucket in it."""

    port: int

    def cloud(self, port: int | None = None, bucket: str = BUCKET) -> CloudSection:
        """Configuration of a store under a prefix nobody else uses."""
        return CloudSection(
            backend="gcs",
            root=f"gs://{bucket}/{uuid.uuid4().hex}",
            gcs=GcsSection(endpoint=f"http://127.0.0.1:{port or self.port}/", access="anonymous"),
        )

    def make_bucket(self) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            headers = {"Content-Type": "application/json"}
            body = json.dumps({"name": BUCKET})
            connection.request("POST", "/storage/v1/b?project=penstock", body, headers)
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="session")
def testbench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """One server for all tests of a run; every test has a prefix of its own."""
    assert PROGRAM is not None
    directory = tmp_path_factory.mktemp("testbench")
    (port,) = free_ports(1)
    # The program itself runs under a reloader, whose child outlives it.
    gunicorn = str(Path(PROGRAM).with_name("gunicorn"))
    (directory / "app.py").write_text(APP)
    command = [gunicorn, f"--bind=127.0.0.1:{port}", "--threads=10", "app:run()"]
    server = GcsServer(port)
    with Running(command, directory, directory / "log") as running:
        running.wait_until(lambda: server.make_bucket() == 200)
        yield server
