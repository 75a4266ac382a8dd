"""Sessions played to nats-server and to Penstock; as a program, what differs between them now.

    python -m tests.conformance.nats.played [SESSION ...]

prints it as `differences.txt` has it, with `?` where no reason is listed yet.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance.nats.differences import differences, listed
from tests.conformance.nats.exchanges import Exchange, read_session, sessions
from tests.conformance.nats.replay import Replay
from tests.servers.nats import OURS, THEIRS, NatsServer


@cache
def played(session: str) -> dict[str, tuple[list[str], list[str]]]:
    """What both answered, theirs first, by the name of the exchange."""
    exchanges = read_session(session)
    theirs = _play(THEIRS, exchanges, [])
    ours = _play(OURS, exchanges, theirs)
    names = [exchange.name for exchange in exchanges]
    return dict(zip(names, zip(theirs, ours, strict=True), strict=True))


def _play(program: str, exchanges: list[Exchange], guide: list[list[str]]) -> list[list[str]]:
    with TemporaryDirectory() as directory:
        server = NatsServer(Path(directory), program)
        try:
            server.start()
            return Replay(server.port, exchanges, guide).run()
        finally:
            server.close()


def main() -> None:
    known = listed()
    for session in sys.argv[1:] or sessions():
        for name, (theirs, ours) in played(session).items():
            lines = differences(theirs, ours)
            if lines:
                reason = known[name].reason if name in known else "?"
                print(f"[{name}] {reason}", *lines, "", sep="\n")


if __name__ == "__main__":
    main()
