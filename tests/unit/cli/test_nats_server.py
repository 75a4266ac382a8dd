import re
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.nats_conf import Options
from penstock.cli.nats_server import (
    SWITCHES,
    VALUES,
    WithoutNiceties,
    host_of,
    options_of,
    plan_of,
    read_arguments,
    run,
)
from penstock.config import Address
from penstock.doors.nats.clients import NatsLimits
from penstock.doors.nats.greeting import Options as Told
from penstock.model.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_flags_are_read_as_nats_server_reads_them(arguments: str, said: dict[str, Any]) -> None:
    assert read_arguments(arguments.split()) == said


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--tls", "flag provided but not defined: --tls; see --help"),
        ("-p", "flag needs an argument: -p"),
        ("-p high", "invalid value 'high' for flag -p: a port is a number"),
        ("start", "unrecognized command: 'start'; see --help"),
    ],
)
def test_a_flag_that_cannot_be_obeyed_is_refused(arguments: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_arguments(arguments.split())
    assert str(raised.value) == error


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "nats.conf"
    file.write_text("port: 1, max_payload: 5, authorization { user: a, password: b }")
    said = {"config": str(file), "port": 2, "user": "c", "password": "d", "quiet": True}
    assert options_of(said) == Options(port=2, max_payload=5, users={"c": "d"})


def test_a_plan_has_what_was_said_and_defaults_for_the_rest(tmp_path: Path) -> None:
    plan = plan_of(
        Options(
            port=-1,
            monitor_port=-1,
            jetstream=True,
            store_dir=str(tmp_path),
            token="t",
            ping_seconds=0.5,
            max_connections=3,
        )
    )
    assert (plan.address, plan.monitor) == (Address("127.0.0.1", 0), Address("127.0.0.1", 0))
    assert plan.data == str(tmp_path / "jetstream")
    assert plan.limits == NatsLimits(connections=3, ping_seconds=0.5)
    assert plan.credentials.allow(Told(auth_token="t"))
    assert not plan.credentials.allow(Told(auth_token="u"))


def test_without_jetstream_nothing_is_kept_and_without_m_there_are_no_pages() -> None:
    plan = plan_of(Options(host="localhost", store_dir="x"))
    assert (plan.address, plan.monitor, plan.data) == (Address("localhost", 4222), None, None)


def test_a_server_called_nats_server_listens_where_nats_server_does() -> None:
    hosts = {
        name: host_of(name) for name in ("/x/nats-server", "nats-server", "/x/penstock-nats-server")
    }
    assert list(hosts.values()) == ["0.0.0.0", "0.0.0.0", "127.0.0.1"]
    assert plan_of(Options(port=1), "0.0.0.0").address == Address("0.0.0.0", 1)
    assert plan_of(Options(host="::1", port=1), "0.0.0.0").address == Address("::1", 1)


def test_a_port_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^port 70000 is not between -1 and 65535$"):
        plan_of(Options(port=70000))


def test_a_store_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(["-js", "-sd", str(tmp_path / "file")]) == 1
    told = capsys.readouterr()
    assert "[FTL] storage directory is not a directory" in told.err
    assert told.out == ""


def test_version_and_help_are_told_and_nothing_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("nats-server: v2.")
    assert run(["-h"]) == 0
    assert "--store_dir DIR" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["pandas", "rich"])
def test_the_server_does_without_niceties(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [WithoutNiceties(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ModuleNotFoundError, match=f"does without {name}"):
        __import__(name)


def test_the_page_names_every_flag() -> None:
    page = (Path(__file__).parents[3] / "docs" / "nats.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith(("| `-", "| `--"))]
    named = {flag.lstrip("-") for row in rows for flag in re.findall(r"`(-+\w+)`", row)}
    told_elsewhere = {"DVV", "debug", "trace"}
    assert named == {*VALUES, *SWITCHES} - told_elsewhere
