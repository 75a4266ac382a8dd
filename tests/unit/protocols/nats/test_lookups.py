"""Subscriptions of a subject, arranged for delivery."""

from __future__ import annotations

import pytest

from penstock.protocols.nats.client import ConnectedClient, Subscription
from penstock.protocols.nats.clients import Clients, NatsLimits
from penstock.protocols.nats.greeting import Credentials
from penstock.protocols.nats.lookups import NOBODY, Matched, Results, arrange, join


@pytest.fixture
async def client() -> ConnectedClient:
    return Clients(("127.0.0.1", 1), NatsLimits(), Credentials(), "").create_client()


async def test_a_queue_group_has_its_members_of_all_patterns(client: ConnectedClient) -> None:
    plain, one, two, other = (
        Subscription(client, b"1", b"a", queue) for queue in (b"", b"q", b"q", b"r")
    )
    found = join([arrange([plain, one]), arrange([two, other])])
    assert found.matched == Matched((plain,), ((one, two), (other,)))
    assert found.size == 1 + 4
    assert join([]).matched is NOBODY


async def test_the_cache_is_cleared_when_its_results_have_too_many_subscriptions(
    client: ConnectedClient,
) -> None:
    results, found = (
        Results(subscriptions_max=10),
        arrange([Subscription(client, b"1", b"a", b"")] * 4),
    )
    results.add(b"a", found)
    results.add(b"b", found)
    assert list(results) == [b"a", b"b"]
    results.add(b"c", found)
    assert dict(results) == {b"c": found.matched}
