from pathlib import Path

import pytest

from penstock.cli.nats_server.configuration import (
    ServerOptions,
    options_of,
    parse,
    read_options,
    seconds,
)
from penstock.model.errors import ConfigError


def _options(text: str) -> ServerOptions:
    return options_of(parse(text, "nats.conf"), "nats.conf")


def test_every_syntax_of_the_format_is_parsed() -> None:
    texts = [
        '{"port": 4333, "server_name": "one", "max_payload": 1048576, "ping_max": 3}',
        "port = 4333\nserver_name: one // a name\nmax_payload 1MB, ping_max: 3 # x",
        "port: 4333; server_name: 'one'; max_payload: 1mb; max_pings_out: 3",
    ]
    expected = ServerOptions(port=4333, server_name="one", max_payload=1 << 20, ping_max=3)
    assert [_options(text) for text in texts] == [expected] * len(texts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: 127.0.0.1:4333", ServerOptions(host="127.0.0.1", port=4333)),
        ('listen: "[::1]:4333"', ServerOptions(host="::1", port=4333)),
        ("listen: 4333", ServerOptions(port=4333)),
        ('listen: ":4333"', ServerOptions(port=4333)),
        ('listen: "localhost:-1"', ServerOptions(host="localhost", port=-1)),
        ('host: "127.0.0.1,::1"', ServerOptions(host="127.0.0.1,::1")),
        ("host: localhost, port: -1", ServerOptions(host="localhost", port=-1)),
        ("http: localhost:8222", ServerOptions(monitor_host="localhost", monitor_port=8222)),
        ("http_port: 8222", ServerOptions(monitor_port=8222)),
        ("monitor_port: 8222", ServerOptions(monitor_port=8222)),
        ("jetstream: true", ServerOptions(jetstream=True)),
        ("jetstream: enabled", ServerOptions(jetstream=True)),
        ("jetstream: off", ServerOptions(jetstream=False)),
        ('jetstream { store_dir: "x y" }', ServerOptions(jetstream=True, store_dir="x y")),
        ("jetstream { enabled: false }", ServerOptions(jetstream=False)),
        ("jetstream {}", ServerOptions(jetstream=True)),
        ("authorization { token: s3cr3t }", ServerOptions(token="s3cr3t")),
        ("authorization { user: a, password: b }", ServerOptions(users={"a": "b"})),
        (
            "authorization {\n users = [\n {user: a, password: b}\n {username: c, pass: d}\n ]\n}",
            ServerOptions(users={"a": "b", "c": "d"}),
        ),
        ("max_connections: 2k", ServerOptions(max_connections=2000)),
        (
            "max_subs: 7, max_pending: 64MB",
            ServerOptions(max_subscriptions=7, max_pending=64 << 20),
        ),
        ('ping_interval: "100ms"', ServerOptions(ping_seconds=0.1)),
        ('ping_interval: "2m"', ServerOptions(ping_seconds=120.0)),
        ("ping_interval: 30", ServerOptions(ping_seconds=30.0)),
        ("debug: true, trace: false", ServerOptions()),
        ("", ServerOptions()),
    ],
)
def test_every_setting_is_read(text: str, expected: ServerOptions) -> None:
    assert _options(text) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{\n"port": : 1}', "nats.conf:2: Parse error: unexpected ':'"),
        ("port", "nats.conf:1: Parse error: unexpected end of the file"),
        ("jetstream {", "nats.conf:1: Parse error: unexpected end of the file"),
        ("users [1", "nats.conf:1: Parse error: unexpected end of the file"),
        ("}", "nats.conf:1: Parse error: unexpected '}'"),
        ("{port: 1} port: 2", "nats.conf:1: Parse error: unexpected 'port'"),
        ('a: "b', "nats.conf:1: Parse error: unexpected '\"'"),
        ("a: " + "[" * 17 + "]" * 17, "nats.conf:1: more than 16 levels deep"),
        ("tls { }", "nats.conf: Penstock does not know the setting tls; remove it"),
        (
            "jetstream { max_file_store: 1 }",
            "nats.conf: Penstock does not know the setting jetstream.max_file_store; remove it",
        ),
        (
            "authorization { timeout: 1 }",
            "nats.conf: Penstock does not know the setting authorization.timeout; remove it",
        ),
        (
            "authorization { users: [{user: a, password: b, nkey: c}] }",
            "nats.conf: Penstock does not know the setting authorization.users.nkey; remove it",
        ),
        ("authorization { users: [{user: a}] }", "nats.conf: a user needs `user` and `password`"),
        ("authorization { users: {} }", "nats.conf: users is a list, not {}"),
        ("authorization: x", "nats.conf: authorization is a block, not 'x'"),
        ("port: high", "nats.conf: port is a number, not 'high'"),
        ("port: true", "nats.conf: port is a number, not True"),
        ("jetstream: 7", "nats.conf: jetstream is true or false, not 7"),
        ("server_name: 7", "nats.conf: server_name is text, not 7"),
        ("listen: here", "nats.conf: listen is HOST:PORT or a port: 'here' lacks a host or a port"),
        ("listen: here:x", "nats.conf: listen is HOST:PORT or a port, not 'here:x'"),
        pytest.param(
            'listen: "[::1"',
            "nats.conf: listen is HOST:PORT or a port: the brackets of '[::1' do not enclose "
            "the host",
        ),
        ("ping_interval: often", "nats.conf: ping_interval is a duration such as 30s, not 'often'"),
        ("ping_interval: 0", "nats.conf: ping_interval is a duration such as 30s, not 0"),
    ],
)
def test_errors_name_the_line_or_the_setting(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _options(text)
    assert str(raised.value) == error


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "none.conf"
    with pytest.raises(ConfigError, match=f"^{path}: No such file or directory$"):
        read_options(path)
    path.write_text("port: 5")
    assert read_options(path) == ServerOptions(port=5)


def test_present_settings_win_over_defaults() -> None:
    below = ServerOptions(port=1, host="a", users={"u": "p"}, jetstream=True)
    assert ServerOptions(port=2, jetstream=False).over(below) == ServerOptions(
        port=2, host="a", users={"u": "p"}, jetstream=False
    )


def test_durations_are_converted_to_seconds() -> None:
    assert [seconds(value) for value in (2, "1m30s", "1.5s", "x", True)] == [2, 90, 1.5, None, None]
