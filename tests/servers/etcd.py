"""A real etcd in processes of its own, on free ports of the loopback."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BIN: Final = Path(sys.executable).parent
WAIT_SECONDS: Final = 60.0


class EtcdServer:
    """One member, alone unless told its peers; `close` kills it by its process id.

    Data survives `kill` and `start`.
    """

    def __init__(
        self,
        directory: Path,
        name: str = "alone",
        peers: dict[str, int] | None = None,
        scheme: str = "http",
        options: Sequence[str] = (),
        client_port: int | None = None,
    ) -> None:
        self._directory = directory
        free_port, own_port = free_ports(2)
        self._client_port = client_port or free_port
        ports = peers or {name: own_port}
        urls = {member: f"http://127.0.0.1:{port}" for member, port in ports.items()}
        self.endpoint = f"{scheme}://127.0.0.1:{self._client_port}"
        self._command = [
            str(BIN / "etcd"),
            f"--name={name}",
            f"--data-dir={directory / name}",
            f"--listen-client-urls={self.endpoint}",
            f"--advertise-client-urls={self.endpoint}",
            f"--listen-peer-urls={urls[name]}",
            f"--initial-advertise-peer-urls={urls[name]}",
            f"--initial-cluster={','.join(f'{member}={url}' for member, url in urls.items())}",
            # The shortest lease etcd grants is 15 heartbeats, in whole seconds.
            "--heartbeat-interval=50",
            "--election-timeout=500",
            "--log-level=error",
            *options,
        ]
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return once it listens; alone it also answers then."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + WAIT_SECONDS
        while not self._listens():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, "etcd does not listen"
            time.sleep(0.02)

    def control(self, *arguments: str) -> str:
        """What etcdctl prints."""
        done = subprocess.run(
            [str(BIN / "etcdctl"), f"--endpoints={self.endpoint}", *arguments],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def values(self, prefix: str) -> dict[str, bytes]:
        """Keys below a prefix and their values, as etcdctl tells them."""
        found = json.loads(self.control("get", "--prefix", prefix, "--write-out=json"))
        return {
            base64.b64decode(item["key"]).decode(): base64.b64decode(item.get("value", ""))
            for item in found.get("kvs", [])
        }

    def kill(self) -> None:
        """As a crash: no warning, nothing saved."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """It stays connected and answers nothing, not even what it was doing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._client_port), 1):
                return True
        except OSError:
            return False


class EtcdCluster:
    """Three members of one cluster."""

    def __init__(self, directory: Path) -> None:
        names = ("one", "two", "three")
        ports = free_ports(2 * len(names))
        peers = dict(zip(names, ports, strict=False))
        self.members = [
            EtcdServer(directory, name, peers, client_port=port)
            for name, port in zip(names, ports[len(names) :], strict=True)
        ]

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def start(self) -> None:
        for member in self.members:
            member.start()

    def close(self) -> None:
        for member in self.members:
            member.close()


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on; held together, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(listener.getsockname()[1]) for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
