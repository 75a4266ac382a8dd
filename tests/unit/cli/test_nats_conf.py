from pathlib import Path

import pytest

from penstock.cli.nats_conf import Options, options_of, parse, read_options, seconds
from penstock.model.errors import ConfigError


def _options(text: str) -> Options:
    return options_of(parse(text, "nats.conf"), "nats.conf")


def test_a_file_may_be_written_in_any_of_the_ways_people_write_it() -> None:
    texts = [
        '{"port": 4333, "server_name": "one", "max_payload": 1048576, "ping_max": 3}',
        "port = 4333\nserver_name: one // a name\nmax_payload 1MB, ping_max: 3 # x",
        "port: 4333; server_name: 'one'; max_payload: 1mb; max_pings_out: 3",
    ]
    expected = Options(port=4333, server_name="one", max_payload=1 << 20, ping_max=3)
    assert [_options(text) for text in texts] == [expected] * len(texts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: 127.0.0.1:4333", Options(host="127.0.0.1", port=4333)),
        ('listen: "[::1]:4333"', Options(host="::1", port=4333)),
        ("listen: 4333", Options(port=4333)),
        ("host: localhost, port: -1", Options(host="localhost", port=-1)),
        ("http: localhost:8222", Options(monitor_host="localhost", monitor_port=8222)),
        ("http_port: 8222", Options(monitor_port=8222)),
        ("monitor_port: 8222", Options(monitor_port=8222)),
        ("jetstream: true", Options(jetstream=True)),
        ("jetstream: enabled", Options(jetstream=True)),
        ("jetstream: off", Options(jetstream=False)),
        ('jetstream { store_dir: "x y" }', Options(jetstream=True, store_dir="x y")),
        ("jetstream { enabled: false }", Options(jetstream=False)),
        ("jetstream {}", Options(jetstream=True)),
        ("authorization { token: s3cr3t }", Options(token="s3cr3t")),
        ("authorization { user: a, password: b }", Options(users={"a": "b"})),
        (
            "authorization {\n users = [\n {user: a, password: b}\n {username: c, pass: d}\n ]\n}",
            Options(users={"a": "b", "c": "d"}),
        ),
        ("max_connections: 2k", Options(max_connections=2000)),
        ("max_subs: 7, max_pending: 64MB", Options(max_subscriptions=7, max_pending=64 << 20)),
        ('ping_interval: "100ms"', Options(ping_seconds=0.1)),
        ('ping_interval: "2m"', Options(ping_seconds=120.0)),
        ("ping_interval: 30", Options(ping_seconds=30.0)),
        ("debug: true, trace: false", Options()),
        ("", Options()),
    ],
)
def test_every_setting_is_read(text: str, expected: Options) -> None:
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
        ("listen: here", "nats.conf: listen is HOST:PORT or a port, not 'here'"),
        ("ping_interval: often", "nats.conf: ping_interval is a duration such as 30s, not 'often'"),
        ("ping_interval: 0", "nats.conf: ping_interval is a duration such as 30s, not 0"),
    ],
)
def test_what_is_wrong_is_named(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _options(text)
    assert str(raised.value) == error


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.conf"
    with pytest.raises(ConfigError, match=f"^{path}: No such file or directory$"):
        read_options(path)
    path.write_text("port: 5")
    assert read_options(path) == Options(port=5)


def test_what_is_said_above_wins_over_what_is_below() -> None:
    below = Options(port=1, host="a", users={"u": "p"}, jetstream=True)
    assert Options(port=2, jetstream=False).over(below) == Options(
        port=2, host="a", users={"u": "p"}, jetstream=False
    )


def test_durations_are_seconds() -> None:
    assert [seconds(value) for value in (2, "1m30s", "1.5s", "x", True)] == [2, 90, 1.5, None, None]
