import re
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.nats_server.command import (
    SWITCHES,
    VALUES,
    BlockUnusedPackages,
    host_of,
    options_of,
    plan_of,
    read_arguments,
    run,
)
from penstock.cli.nats_server.configuration import ServerOptions
from penstock.config import Address
from penstock.model.errors import ConfigError
from penstock.protocols.listener import ALL_INTERFACES
from penstock.protocols.nats import NatsLimits
from penstock.protocols.nats.greeting import Options as ClientOptions


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ("-p 4333 -a localhost -m 8222", {"port": 4333, "host": "localhost", "monitor_port": 8222}),
        ("--port=-1 --addr=::1", {"port": -1, "host": "::1"}),
        ("--port -1", {"port": -1}),
        ("-js -sd=x", {"jetstream": True, "store_dir": "x"}),
        ("--jetstream --store_dir x", {"jetstream": True, "store_dir": "x"}),
        ("-js=false", {"jetstream": False}),
        ("--user u --pass p", {"user": "u", "password": "p"}),
        ("--auth t", {"token": "t"}),
        ("-n one", {"server_name": "one"}),
        ("--server_name one", {"server_name": "one"}),
        ("-c f", {"config": "f"}),
        ("--config f -DV", {"config": "f", "quiet": True}),
        ("-v", {"version": True}),
        ("", {}),
    ],
)
def test_flags_are_read_as_nats_server_reads_them(arguments: str, settings: dict[str, Any]) -> None:
    assert read_arguments(arguments.split()) == settings


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--tls", "flag provided but not defined: --tls; see --help"),
        ("-p", "flag needs an argument: -p"),
        ("-p high", "invalid value 'high' for flag -p: a port is a number"),
        ("start", "unrecognized command: 'start'; see --help"),
    ],
)
def test_an_unknown_or_malformed_flag_is_refused(arguments: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_arguments(arguments.split())
    assert str(raised.value) == error


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "nats.conf"
    file.write_text("port: 1, max_payload: 5, authorization { user: a, password: b }")
    settings = {"config": str(file), "port": 2, "user": "c", "password": "d", "quiet": True}
    assert options_of(settings) == ServerOptions(port=2, max_payload=5, users={"c": "d"})


def test_a_plan_has_the_options_and_defaults(tmp_path: Path) -> None:
    plan = plan_of(
        ServerOptions(
            port=-1,
            monitor_port=-1,
            jetstream=True,
            store_dir=str(tmp_path),
            token="t",
            ping_seconds=0.5,
            max_connections=3,
        )
    )
    assert plan.addresses == plan.monitor == (Address("127.0.0.1", 0),)
    assert plan.data == str(tmp_path / "jetstream")
    assert plan.limits == NatsLimits(connections=3, ping_seconds=0.5)
    assert plan.credentials.allow(ClientOptions(auth_token="t"))
    assert not plan.credentials.allow(ClientOptions(auth_token="u"))


def test_jetstream_and_the_monitor_are_off_by_default() -> None:
    plan = plan_of(ServerOptions(host="localhost", store_dir="x"))
    assert plan.addresses == (Address("localhost", 4222),)
    assert (plan.monitor, plan.data) == ((), None)


def test_a_program_called_nats_server_listens_on_all_addresses() -> None:
    hosts = {
        name: host_of(name) for name in ("/x/nats-server", "nats-server", "/x/penstock-nats-server")
    }
    assert list(hosts.values()) == ["0.0.0.0", "0.0.0.0", "127.0.0.1"]
    for host in ("0.0.0.0", "::"):
        assert plan_of(ServerOptions(port=1), host).addresses == (Address(ALL_INTERFACES, 1),)
    assert plan_of(ServerOptions(host="::1", port=1), "0.0.0.0").addresses == (Address("::1", 1),)


def test_hosts_are_separated_by_commas() -> None:
    plan = plan_of(ServerOptions(host="127.0.0.1, ::1,[::2]", port=1, monitor_port=2))
    hosts = ["127.0.0.1", "::1", "::2"]
    assert plan.addresses == tuple(Address(host, 1) for host in hosts)
    assert plan.monitor == tuple(Address(host, 2) for host in hosts)
    apart = plan_of(ServerOptions(host="127.0.0.1", monitor_host="::1", monitor_port=2))
    assert apart.monitor == (Address("::1", 2),)
    with pytest.raises(ConfigError, match=r"^the host '\[::1' cannot be used: the brackets of "):
        plan_of(ServerOptions(host="[::1"))


def test_a_port_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^port 70000 is not between -1 and 65535$"):
        plan_of(ServerOptions(port=70000))


def test_a_store_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(["-js", "-sd", str(tmp_path / "file")]) == 1
    told = capsys.readouterr()
    assert "[FTL] storage directory is not a directory" in told.err
    assert told.out == ""


def test_version_and_help_start_no_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("nats-server: v2.")
    assert run(["-h"]) == 0
    assert "--store_dir DIR" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["pandas", "rich"])
def test_unused_packages_are_not_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [BlockUnusedPackages(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ModuleNotFoundError, match=f"does not use {name}"):
        __import__(name)


def test_the_documentation_has_every_flag() -> None:
    page = (Path(__file__).parents[4] / "docs" / "nats.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith(("| `-", "| `--"))]
    named = {flag.lstrip("-") for row in rows for flag in re.findall(r"`(-+\w+)`", row)}
    undocumented = {"DVV", "debug", "trace"}
    assert named == {*VALUES, *SWITCHES} - undocumented
