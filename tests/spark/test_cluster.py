"""Reads and writes on a cluster of a master and two workers, with a bucket on an S3 server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from penstock.client import SyncClient
from tests.integration.process import FREE_PORT, Broker, clean_environment
from tests.servers.running import Running, free_ports
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.spark.topics import fetched, messages, uploaded

ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
CLASSES = "org.apache.spark.deploy"


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master with two workers of one core each."""
    directory = tmp_path_factory.mktemp("cluster")
    port, master_ui, *worker_uis = free_ports(4)
    environ = {
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    run = [str(HOME / "bin" / "spark-class")]
    where = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(master_ui)]
    with ExitStack() as stack:
        command = [*run, f"{CLASSES}.master.Master", *where]
        first = stack.enter_context(Running(command, directory, directory / "master.log", environ))
        first.wait_until(lambda: answers(port))
        url = f"spark://127.0.0.1:{port}"
        for number, ui in enumerate(worker_uis):
            own = ["--host", "127.0.0.1", "--webui-port", str(ui), "--cores", "1"]
            limits = ["--memory", "700m", "--work-dir", str(directory / f"work{number}")]
            command = [*run, f"{CLASSES}.worker.Worker", *own, *limits, url]
            log = directory / f"worker{number}.log"
            worker = stack.enter_context(Running(command, directory, log, environ))
            worker.wait_until(lambda log=log: "Successfully registered" in log.read_text())  # type: ignore[misc]
        yield url


@pytest.mark.feature("S12")
@pytest.mark.timeout(300)
def test_executors_read_and_stage_objects_without_the_broker(
    master: str, rclone: S3Server, tmp_path: Path, name: str
) -> None:
    cloud = rclone.cloud()
    settings = {
        "storage.mode": "wal_cloud",
        "storage.cloud.backend": "s3",
        "storage.cloud.root": cloud.root,
        "storage.cloud.s3.endpoint": cloud.s3.endpoint,
        "storage.cloud.s3.region": cloud.s3.region,
        "storage.cloud.s3.access_key": ACCESS_KEY,
        "storage.cloud.s3.secret_key": SECRET_KEY,
        "storage.uploader.interval_seconds": "1",
    }
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    with Broker("--data", str(tmp_path / "data"), *FREE_PORT, *sets) as broker:
        url = f"http://{broker.host}:{broker.port}"
        with SyncClient(url) as client:
            client.create_topic(name)
            client.create_topic(f"{name}copy")
            client.push(name, messages(0, 30_000))
            uploaded(client, name)
            client.push(name, messages(30_000, 500))
            done = subprocess.run(
                [sys.executable, "-m", "tests.spark.cluster_job", master, url, name, f"{name}copy"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=280,
                env=clean_environment(),
            )
            assert done.returncode == 0, done.stderr[-2000:]
            told = json.loads(done.stdout.splitlines()[-1])
            assert len(told["places"]) == 2
            assert (told["rows"], told["offsets"], told["sound"]) == (30_500, 30_500, True)
            copied = [row["payload"] for row in fetched(client, f"{name}copy")]
            assert sorted(copied) == sorted(b"message %d" % i for i in range(30_500))
