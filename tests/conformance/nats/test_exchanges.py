"""Every captured exchange, played to nats-server and to Penstock in the same run."""

from __future__ import annotations

import pytest

from tests.conformance.nats.differences import differences, listed, reasons
from tests.conformance.nats.exchanges import Exchange, read_session, sessions
from tests.conformance.nats.played import played

EXCHANGES = [exchange for session in sessions() for exchange in read_session(session)]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
def test_penstock_answers_as_nats_server_does(exchange: Exchange) -> None:
    theirs, ours = played(exchange.session)[exchange.name]
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
