"""Real processes that listen on several addresses and on IPv6, and the clients that find them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock import Client, SyncClient, nats
from penstock.metadata.remote import RemoteAdmin, RemoteCalls
from tests.integration.process import (
    FREE_PORT,
    PENSTOCK,
    WAIT_SECONDS,
    Broker,
    clean_environment,
    refused,
)
from tests.loopback import IPV6, needs_ipv6
from tests.servers.nats import OURS, NatsServer
from tests.servers.running import BIN

IPV6_ONLY = ("--http", "[::1]:0", "--grpc", "[::1]:0", "--nats", "[::1]:0")
SEVERAL = ["127.0.0.1", "127.0.0.2", *(["::1"] if IPV6 else [])]


def _info(host: str, port: int) -> dict[str, Any]:
    with socket.create_connection((host, port), WAIT_SECONDS) as client:
        line = client.makefile("rb").readline()
    return dict(json.loads(line.removeprefix(b"INFO ")))


def _several() -> list[str]:
    flags = []
    for flag in ("--nats", "--http", "--grpc"):
        for host in SEVERAL:
            flags += [flag, f"[{host}]:0" if ":" in host else f"{host}:0"]
    return flags


async def test_a_broker_serves_every_protocol_on_all_of_several_addresses(tmp_path: Path) -> None:
    with Broker("--data", str(tmp_path), *_several()) as broker:
        calls_at = broker.grpc_addresses(len(SEVERAL))
        listening = (broker.nats_urls, broker.http_urls, [f"grpc://{at}" for at in calls_at])
        for urls in listening:
            assert [urlsplit(url).hostname for url in urls] == SEVERAL
            assert len({urlsplit(url).port for url in urls}) == 1
        with SyncClient(broker.http_urls[0]) as client:
            client.create_topic("t")
        for url in broker.http_urls:
            with SyncClient(url) as client:
                client.push("t", [{"payload": b"x"}])
        for url in broker.http_urls:
            async with Client(url) as client:
                assert len(await client.fetch("t", 0, max_messages=9)) == len(SEVERAL)
        for address in calls_at:
            calls = RemoteCalls(address)
            assert (await RemoteAdmin(calls).get_tenant("default")).tenant == "default"
            await calls.close()
        for url in broker.nats_urls:
            async with await nats.connect(url):
                pass
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        events = [json.loads(line) for line in broker.errors().splitlines()]
        [ready] = [event for event in events if event["event"] == "broker ready"]
        assert ready["http"] == ",".join(broker.http_urls)
    again = [
        f"--{url.partition('://')[0]}={url.partition('://')[2]}"
        for part in listening
        for url in part
    ]
    with Broker("--data", str(tmp_path), *again) as broker:
        assert broker.get("/readyz").status == 200


def test_localhost_is_every_loopback_address_of_the_machine(tmp_path: Path) -> None:
    protocols = ("--http", "localhost:0", "--grpc", "localhost:0", "--nats", "localhost:0")
    with Broker("--data", str(tmp_path), *protocols) as broker:
        hosts = ["127.0.0.1", *(["::1"] if IPV6 else [])]
        broker.grpc_addresses(len(hosts))
        assert [urlsplit(url).hostname for url in broker.nats_urls] == hosts
        assert [urlsplit(url).hostname for url in broker.http_urls] == hosts


@needs_ipv6
async def test_a_broker_and_a_node_on_ipv6_alone_find_each_other(tmp_path: Path) -> None:
    with Broker("--data", str(tmp_path / "data"), *IPV6_ONLY) as broker:
        url = broker.http_urls[0]
        assert url == f"http://[::1]:{broker.port}"
        with SyncClient(url) as client:
            client.create_topic("t")
            client.push("t", [{"payload": b"hot"}])
        role = ("--role", "fetch", "--metadata", broker.grpc, "--http", "[::1]:0")
        with Broker("--data", str(tmp_path / "data"), *role) as node:
            # It is only at the owner, whose address the broker tells the node.
            with SyncClient(node.http_urls[0]) as client:
                assert client.fetch("t", 0).table["payload"].to_pylist() == [b"hot"]
            node.signal(signal.SIGTERM)
            assert node.wait() == 0
        at = urlsplit(broker.nats_url)
        assert broker.nats_url == f"nats://[::1]:{at.port}"
        info = _info("::1", at.port or 0)
        assert (info["host"], info["port"], info["client_ip"]) == ("::1", at.port, "::1")
        for arguments, environ in ((("--url", url), {}), ((), {"PENSTOCK_URL": url})):
            listed = subprocess.run(
                [PENSTOCK, "topic", "list", *arguments],
                capture_output=True,
                text=True,
                timeout=WAIT_SECONDS,
                env=clean_environment(environ),
            )
            assert (listed.returncode, listed.stderr) == (0, "")
            assert "t" in listed.stdout.split()


@pytest.mark.parametrize(
    ("flag", "address", "reason"),
    [
        ("--http", "[::]:0", "cannot listen on [::]:0: it is reachable from other machines"),
        ("--nats", "127.0.0.1:0,0.0.0.0:0", "cannot listen on 0.0.0.0:0: it is reachable from "),
        ("--grpc", "[::ffff:0.0.0.0]:0", "cannot listen on [::ffff:0.0.0.0]:0: it is reachable"),
        ("--http", "[::1%lo]:0", "zone ids, such as that of '::1%lo', are not supported"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_reason(
    tmp_path: Path, flag: str, address: str, reason: str
) -> None:
    refusal = refused(*FREE_PORT, flag, address, cwd=tmp_path)
    assert reason in refusal
    assert flag in refusal


@needs_ipv6
@pytest.mark.parametrize("hosts", ["::1", "127.0.0.1,::1", "localhost"])
def test_the_nats_server_listens_on_ipv6_and_on_several_addresses(
    tmp_path: Path, hosts: str
) -> None:
    server = NatsServer(tmp_path, OURS, ("--addr", hosts, "-m", "-1"))
    try:
        server.start()
        bound = ["::1"] if hosts == "::1" else ["127.0.0.1", "::1"]
        shown = [f"[{host}]" if ":" in host else host for host in bound]
        lines = [line.partition(" [INF] ")[2] for line in server.log().splitlines()]
        assert lines == [
            *(f"Starting http monitor on {host}:{server.monitor}" for host in shown),
            *(f"Listening for client connections on {host}:{server.port}" for host in shown),
            "Server is ready",
        ]
        for host in bound:
            assert _info(host, server.port)["host"] == bound[0]
            pages = http.client.HTTPConnection(host, server.monitor, timeout=WAIT_SECONDS)
            pages.request("GET", "/varz")
            assert json.loads(pages.getresponse().read())["http_host"] == bound[0]
            pages.close()
        assert server.stop() == 0
    finally:
        server.close()


def test_a_server_called_nats_server_listens_on_all_addresses_of_both_families(
    tmp_path: Path,
) -> None:
    called = tmp_path / "nats-server"
    called.symlink_to(BIN / OURS)
    process = subprocess.Popen(
        [str(called), "-p", "-1"], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert process.stderr is not None
        lines = []
        while "Server is ready" not in (line := process.stderr.readline()):
            assert line
            lines.append(line)
        found = [re.search(r"connections on (.+):([0-9]+)$", line) for line in lines]
        hosts = [match[1] for match in found if match]
        assert hosts == ["0.0.0.0"]
        [port] = {int(match[2]) for match in found if match}
        for host in SEVERAL:
            assert _info(host, port)["host"] == "0.0.0.0"
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_SECONDS)
