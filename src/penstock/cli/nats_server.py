"""`penstock-nats-server`: Penstock where nats-server stood.

It takes nats-server's everyday flags, written as its users write them: one dash or two, the value
behind a space or an equals sign. It tells on standard error, in nats-server's form, that it is
ready, and otherwise next to nothing. It listens on 127.0.0.1 unless told another address; to call
it by the name `nats-server` is to tell it: then it listens everywhere, as nats-server does.
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
from penstock.cli.nats_conf import Options, read_options
from penstock.model.errors import ConfigError, PenstockError
from penstock.wire.jetstream.levels import VERSION

if TYPE_CHECKING:
    from penstock.assembly.nats_server import Plan

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
NICETIES: Final = {"pandas", "rich"}
HELP: Final = """\
Usage: penstock-nats-server [options]

  -a, --addr, --net HOST    address to listen on [default: 127.0.0.1; when the
                            command is called by the name nats-server: 0.0.0.0]
  -p, --port PORT           port for clients; -1 takes a free one [default: 4222]
  -n, --name, --server_name NAME
  -m, --http_port PORT      port of /varz and /connz; -1 takes a free one
  -c, --config FILE         configuration in nats-server's format
  -js, --jetstream          keep streams
  -sd, --store_dir DIR      where they are kept
  --user USER --pass PASSWORD, --auth TOKEN
                            what clients must know
  -D, -V, -DV               accepted; this server tells little
  -v, --version             -h, --help
"""


class WithoutNiceties(MetaPathFinder):
    """pyarrow imports pandas and structlog imports rich if they are there: half of a start.

    This server does without either.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in NICETIES:
            raise ModuleNotFoundError(f"this server does without {fullname}", name=fullname)


def main() -> None:
    """Run the command line and exit."""
    # Nothing that is imported is garbage, and looking for it takes a quarter of a start.
    gc.disable()
    sys.meta_path.insert(0, WithoutNiceties())
    sys.exit(run(sys.argv[1:], host_of(sys.argv[0])))


def host_of(program: str) -> str:
    """Where a server listens that was called by this name and told no address."""
    return DROP_IN_HOST if Path(program).name == DROP_IN else HOST


def run(arguments: Sequence[str], host: str = HOST) -> int:
    """The exit code, once the server has stopped; `host` is where it listens unless told."""
    try:
        said = read_arguments(arguments)
        if "help" in said or "version" in said:
            sys.stdout.write(HELP if "help" in said else _version())
            return 0
        plan = plan_of(options_of(said), host)
        from penstock.assembly.nats_server import serve

        serve(plan, _tell)
    except PenstockError as error:
        _tell(str(error), "FTL")
        return 1
    return 0


def read_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """What the flags say, by the names of the options; raises ConfigError."""
    said: dict[str, Any] = {}
    left = list(arguments)
    while left:
        given = left.pop(0)
        name, equals, value = given.lstrip("-").partition("=")
        if not given.startswith("-"):
            raise ConfigError(f"unrecognized command: {given!r}; see --help")
        if name in SWITCHES:
            said[SWITCHES[name]] = value != "false"
        elif name in VALUES:
            if not equals and not left:
                raise ConfigError(f"flag needs an argument: {given}")
            said[VALUES[name]] = _typed(VALUES[name], value if equals else left.pop(0), given)
        else:
            raise ConfigError(f"flag provided but not defined: {given}; see --help")
    return said


def options_of(said: dict[str, Any]) -> Options:
    """The flags, over what the file says; raises ConfigError."""
    below = read_options(Path(said["config"])) if "config" in said else Options()
    known = {name: value for name, value in said.items() if name in Options.__slots__}
    if "user" in said:
        known["users"] = {said["user"]: said.get("password", "")}
    return Options(**known).over(below)


def plan_of(options: Options, host: str = HOST) -> Plan:
    """Raises ConfigError or StartRefused."""
    from penstock.assembly.nats_server import Plan
    from penstock.config import Address
    from penstock.doors.nats.clients import NatsLimits
    from penstock.doors.nats.greeting import Credentials

    host = options.host or host
    monitor = None
    if options.monitor_port is not None:
        monitor = Address(options.monitor_host or host, _port(options.monitor_port))
    given = {
        "connections": options.max_connections,
        "payload_bytes": options.max_payload,
        "pending_bytes": options.max_pending,
        "subscriptions": options.max_subscriptions,
        "ping_seconds": options.ping_seconds,
        "pings_out": options.ping_max,
    }
    limits: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Plan(
        Address(host, _port(PORT if options.port is None else options.port)),
        monitor,
        _store(options) if options.jetstream else None,
        options.server_name or "",
        replace(NatsLimits(), **limits),
        Credentials(options.token or "", dict(options.users)),
    )


def _typed(name: str, value: str, given: str) -> str | int:
    if name not in INTEGERS:
        return value
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"invalid value {value!r} for flag {given}: a port is a number") from None


def _port(port: int) -> int:
    if not FREE_PORT <= port <= 0xFFFF:
        raise ConfigError(f"port {port} is not between -1 and 65535")
    return max(port, 0)


def _store(options: Options) -> str:
    store = Path(options.store_dir or Path(tempfile.gettempdir()) / "nats")
    if store.exists() and not store.is_dir():
        raise ConfigError(f"storage directory is not a directory: {store}; choose one with -sd")
    return str(store / "jetstream")


def _version() -> str:
    return f"nats-server: v{VERSION} (penstock {__version__})\n"


def _tell(text: str, level: str = "INF") -> None:
    now = datetime.now(UTC).strftime("%Y/%m/%d %H:%M:%S.%f")
    sys.stderr.write(f"[{os.getpid()}] {now} [{level}] {text}\n")
    sys.stderr.flush()
