"""Azurite, Microsoft's emulator of Azure Blob Storage, where somebody has installed it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import shutil
import uuid
from collections.abc import Iterator
from email.utils import formatdate
from typing import Final, NamedTuple

import pytest

from penstock.config import AzblobSection, CloudSection
from tests.servers.running import Running, free_ports

PROGRAM: Final = shutil.which("azurite-blob")
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The same in every installation, as documented."""
CONTAINER: Final = "penstock"
VERSION: Final = "2021-12-02"


class AzureServer(NamedTuple):
    """A server on a loopback port, with a container in it."""

    port: int

    def cloud(self) -> CloudSection:
        """Configuration of a store under a prefix nobody else uses."""
        endpoint = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        return CloudSection(
            backend="azblob",
            root=f"azblob://{CONTAINER}/{uuid.uuid4().hex}",
            azblob=AzblobSection(account=ACCOUNT, key=KEY, endpoint=endpoint),
        )

    def make_container(self) -> int:
        date = formatdate(usegmt=True)
        resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        text = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{VERSION}\n{resource}"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": date,
            "x-ms-version": VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Length": "0",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            path = f"/{ACCOUNT}/{CONTAINER}?restype=container"
            connection.request("PUT", path, headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """One server for all tests of a run; every test has a prefix of its own."""
    assert PROGRAM is not None
    directory = tmp_path_factory.mktemp("azurite")
    (port,) = free_ports(1)
    command = [PROGRAM, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    server = AzureServer(port)
    with Running(command, directory, directory / "log") as running:
        running.wait_until(lambda: server.make_container() == 201)
        yield server
