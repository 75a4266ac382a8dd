"""Every captured exchange, played to nats-server and to Penstock in the same run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.conformance.nats.differences import differences, listed, reasons
from tests.conformance.nats.exchanges import Exchange, read_session, sessions
from tests.conformance.nats.replay import Replay
from tests.servers.nats import OURS, THEIRS, NatsServer

EXCHANGES = [exchange for session in sessions() for exchange in read_session(session)]


@cache
def _played(session: str) -> dict[str, tuple[list[str], list[str]]]:
    """What both answered, by the name of the exchange."""
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


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
def test_penstock_answers_as_nats_server_does(exchange: Exchange) -> None:
    theirs, ours = _played(exchange.session)[exchange.name]
    on_purpose = listed().get(exchange.name)
    assert differences(theirs, ours) == ([] if on_purpose is None else on_purpose.lines)


def test_every_exchange_has_a_name_of_its_own() -> None:
    assert len({exchange.name for exchange in EXCHANGES}) == len(EXCHANGES)


def test_every_listed_difference_is_of_an_exchange_and_its_reason_is_told() -> None:
    names = {exchange.name for exchange in EXCHANGES}
    for name, difference in listed().items():
        assert name in names
        assert any(row.startswith(difference.reason) for row in reasons()), difference.reason
        assert difference.lines
