"""`penstock-nats-server`: Penstock as a drop-in replacement for nats-server.

It accepts nats-server's common flags in nats-server's syntax: one dash or two, and the value after
a space or an equals sign. It logs little besides its readiness, on standard error and in
nats-server's format. The default address is 127.0.0.1; if the program is called by the name
`nats-server`, it is all addresses, as with nats-server.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock import __version__
from penstock.cli.nats_server.configuration import ServerOptions, read_options
from penstock.model.errors import ConfigError, PenstockError
from penstock.wire.jetstream.levels import VERSION

if TYPE_CHECKING:
    from penstock.assembly.nats_server import NatsServerPlan

HOST: Final = "127.0.0.1"
DROP_IN: Final = "nats-server"
DROP_IN_HOST: Final = "0.0.0.0"  # noqa: S104
PORT: Final = 4222
FREE_PORT: Final = -1
VALUES: Final = {
    **dict.fromkeys(("p", "port"), "port"),
    **dict.fromkeys(("a", "addr", "net"), "host"),
    **dict.fromkeys(("m", "http_port"), "monitor_port"),
    **dict.fromkeys(("n", "name", "server_name"), "server_name"),
    **dict.fromkeys(("sd", "store_dir"), "store_dir"),
    **dict.fromkeys(("c", "config"), "config"),
    "user": "user",
    "pass": "password",
    "auth": "token",
}
SWITCHES: Final = {
    **dict.fromkeys(("js", "jetstream"), "jetstream"),
    **dict.fromkeys(("v", "version"), "version"),
    **dict.fromkeys(("h", "help"), "help"),
    **dict.fromkeys(("D", "V", "DV", "DVV", "debug", "trace"), "quiet"),
}
INTEGERS: Final = {"port", "monitor_port"}
UNUSED_PACKAGES: Final = {"pandas", "rich"}
HELP: Final = """\
Usage: penstock-nats-server [options]

  -a, --addr, --net HOST    address to listen on, or several with commas; 0.0.0.0
                            is all addresses [default: 127.0.0.1; when the
                            command is called by the name nats-server: 0.0.0.0]
  -p, --port PORT           port for clients; -1 selects a free one [default: 4222]
  -n, --name, --server_name NAME
  -m, --http_port PORT      port of /varz and /connz; -1 selects a free one
  -c, --config FILE         configuration in nats-server's format
  -js, --jetstream          enable JetStream
  -sd, --store_dir DIR      directory of its data
  --user USER --pass PASSWORD, --auth TOKEN
                            credentials of clients
  -D, -V, -DV               accepted without effect
  -v, --version             -h, --help
"""


class BlockUnusedPackages(MetaPathFinder):
    """Prevents the import of packages that this server does not use.

    pyarrow imports pandas and structlog imports rich if they are installed, which takes half of the
    start-up time.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in UNUSED_PACKAGES:
            raise ModuleNotFoundError(f"this server does not use {fullname}", name=fullname)


def main() -> None:
    """Run the command line and exit."""
    # Imports leave no garbage, and looking for it takes a quarter of the start-up time.
    gc.disable()
    sys.meta_path.insert(0, BlockUnusedPackages())
    sys.exit(run(sys.argv[1:], host_of(sys.argv[0])))


def host_of(program: str) -> str:
    """The default address of a server that was called by this program name."""
    return DROP_IN_HOST if Path(program).name == DROP_IN else HOST


def run(arguments: Sequence[str], host: str = HOST) -> int:
    """Run the server until it stops and return the exit code; `host` is the default address."""
    try:
        settings = read_arguments(arguments)
        if "help" in settings or "version" in settings:
            sys.stdout.write(HELP if "help" in settings else _version())
            return 0
        plan = plan_of(options_of(settings), host)
        from penstock.assembly.nats_server import serve_nats

        serve_nats(plan, _log)
    except PenstockError as error:
        _log(str(error), "FTL")
        return 1
    return 0


def read_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse the flags; the result is keyed by option. Raises ConfigError."""
    settings: dict[str, Any] = {}
    remaining = list(arguments)
    while remaining:
        flag = remaining.pop(0)
        name, equals, value = flag.lstrip("-").partition("=")
        if not flag.startswith("-"):
            raise ConfigError(f"unrecognized command: {flag!r}; see --help")
        if name in SWITCHES:
            settings[SWITCHES[name]] = value != "false"
        elif name in VALUES:
            if not equals and not remaining:
                raise ConfigError(f"flag needs an argument: {flag}")
            settings[VALUES[name]] = _typed(
                VALUES[name], value if equals else remaining.pop(0), flag
            )
        else:
            raise ConfigError(f"flag provided but not defined: {flag}; see --help")
    return settings


def options_of(settings: dict[str, Any]) -> ServerOptions:
    """The settings of the flags and, with lower priority, of the file; raises ConfigError."""
    defaults = read_options(Path(settings["config"])) if "config" in settings else ServerOptions()
    known = {name: value for name, value in settings.items() if name in ServerOptions.__slots__}
    if "user" in settings:
        known["users"] = {settings["user"]: settings.get("password", "")}
    return ServerOptions(**known).over(defaults)


def plan_of(options: ServerOptions, host: str = HOST) -> NatsServerPlan:
    """What the server has to run; raises ConfigError or StartRefused."""
    from penstock.assembly.nats_server import NatsServerPlan
    from penstock.config import Address
    from penstock.protocols.nats import Credentials, NatsLimits

    given_hosts = _hosts(options.host or host)
    hosts = _all_interfaces(given_hosts)
    port = _port(PORT if options.port is None else options.port)
    monitor: tuple[Address, ...] = ()
    if options.monitor_port is not None:
        pages = _all_interfaces(_hosts(options.monitor_host)) if options.monitor_host else hosts
        monitor = tuple(Address(page, _port(options.monitor_port)) for page in pages)
    values = {
        "connections": options.max_connections,
        "payload_bytes": options.max_payload,
        "pending_bytes": options.max_pending,
        "subscriptions": options.max_subscriptions,
        "ping_seconds": options.ping_seconds,
        "pings_out": options.ping_max,
    }
    limits: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return NatsServerPlan(
        tuple(Address(host, port) for host in hosts),
        monitor,
        _store(options) if options.jetstream else None,
        options.server_name or "",
        replace(NatsLimits(), **limits),
        Credentials(options.token or "", dict(options.users)),
        tuple(name for name, listened in zip(given_hosts, hosts, strict=True) if not listened),
    )


def _hosts(text: str) -> list[str]:
    """Split a list of hosts at commas."""
    from penstock.config import AddressInvalid, split_address

    try:
        return [
            split_address(f"{host}:{PORT}")[0] if "[" in host else host
            for host in map(str.strip, text.split(","))
        ]
    except AddressInvalid as error:
        raise ConfigError(f"the host {text!r} cannot be used: {error}") from None


def _all_interfaces(hosts: Sequence[str]) -> list[str]:
    """The hosts, with one name for `0.0.0.0` and `::`: all addresses of either family."""
    from penstock.protocols import ALL_INTERFACES, EVERY_FAMILY

    wildcards = EVERY_FAMILY[ALL_INTERFACES]
    return [ALL_INTERFACES if host in wildcards else host for host in hosts]


def _typed(name: str, value: str, flag: str) -> str | int:
    if name not in INTEGERS:
        return value
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"invalid value {value!r} for flag {flag}: a port is a number") from None


def _port(port: int) -> int:
    if not FREE_PORT <= port <= 0xFFFF:
        raise ConfigError(f"port {port} is not between -1 and 65535")
    return max(port, 0)


def _store(options: ServerOptions) -> str:
    store = Path(options.store_dir or Path(tempfile.gettempdir()) / "nats")
    if store.exists() and not store.is_dir():
        raise ConfigError(f"storage directory is not a directory: {store}; choose one with -sd")
    return str(store / "jetstream")


def _version() -> str:
    return f"nats-server: v{VERSION} (penstock {__version__})\n"


def _log(text: str, level: str = "INF") -> None:
    now = datetime.now(UTC).strftime("%Y/%m/%d %H:%M:%S.%f")
    sys.stderr.write(f"[{os.getpid()}] {now} [{level}] {text}\n")
    sys.stderr.flush()
