"""The npm clients, unmodified: what they see of Penstock is what they see of nats-server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.servers.nats import OURS, THEIRS, NatsServer

NPM: Final = shutil.which("npm")
PACKAGES: Final = ("@nats-io/transport-node", "@nats-io/jetstream", "@nats-io/kv")
VERSION: Final = "3.4.0"
SCRIPT: Final = Path(__file__).with_name("npm_client.mjs")
INSTALLED: Final = Path(__file__).parents[3] / "build" / f"npm-nats-{VERSION}"
WAIT_SECONDS: Final = 100


@pytest.fixture(scope="module")
def script() -> Path:
    """The script where it finds its packages, which are installed once."""
    if NPM is None:
        pytest.skip("npm is not installed")
    if not (INSTALLED / "done").exists():
        INSTALLED.mkdir(parents=True, exist_ok=True)
        wanted = [f"{package}@{VERSION}" for package in PACKAGES]
        done = subprocess.run(
            [NPM, "install", "--prefix", str(INSTALLED), "--no-audit", "--no-fund", *wanted],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
        if done.returncode:
            pytest.skip(f"npm cannot install them here: {done.stderr.strip()[-200:]}")
        (INSTALLED / "done").touch()
    return Path(shutil.copy(SCRIPT, INSTALLED))


def _seen(script: Path, directory: Path, program: str) -> list[Any]:
    directory.mkdir()
    server = NatsServer(directory, program)
    server.start()
    try:
        done = subprocess.run(
            ["node", str(script), server.url], capture_output=True, text=True, timeout=WAIT_SECONDS
        )
    finally:
        server.close()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.feature("P15")
def test_the_npm_clients_see_no_difference(script: Path, tmp_path: Path) -> None:
    theirs = _seen(script, tmp_path / "theirs", THEIRS)
    ours = _seen(script, tmp_path / "ours", OURS)
    assert ours == theirs
    assert theirs[-1] == ["destroy", True]
