"""Subscriptions, lookups, and observers of changes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.subject_tree import pattern_matches
from penstock.protocols.nats.client import ConnectedClient, Subscription
from penstock.protocols.nats.clients import Clients, NatsLimits
from penstock.protocols.nats.greeting import Credentials
from penstock.protocols.nats.interest import Interest
from penstock.protocols.nats.lookups import NOBODY, RESULTS_MAX


def the_client() -> ConnectedClient:
    return Clients(("127.0.0.1", 1), NatsLimits(), Credentials(), "").create_client()


@pytest.fixture
async def client() -> ConnectedClient:
    return the_client()


def sub(client: ConnectedClient, subject: bytes, queue: bytes = b"") -> Subscription:
    return Subscription(client, b"1", subject, queue)


@pytest.mark.feature("P01")
async def test_everyone_gets_a_message_and_of_each_queue_group_one(
    client: ConnectedClient,
) -> None:
    interest = Interest()
    plain, wide = sub(client, b"a.b"), sub(client, b"a.>")
    first, second, other = (sub(client, b"a.*", queue) for queue in (b"q", b"q", b"r"))
    for one in (plain, wide, first, second, other):
        interest.add(one)
    matched = interest.match(b"a.b")
    assert set(matched.plain) == {plain, wide}
    assert set(map(frozenset, matched.queues)) == {frozenset({first, second}), frozenset({other})}
    assert interest.count == 5


PATTERNS = b"a b * > a.b a.* a.> _INBOX.x.* _INBOX.x.1 _INBOX.*.2 _INBOX.>".split()
INBOXES = b"_INBOX.x.1 _INBOX.x.2 _INBOX.x.3 _INBOX.x. _INBOX.x.1.2".split()


@pytest.mark.feature("P01")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PATTERNS),
            st.booleans(),
        ),
        max_size=30,
    )
)
async def test_cached_results_equal_uncached_lookups(changes: list[tuple[bytes, bool]]) -> None:
    interest = Interest()
    owner = the_client()
    there: list[Subscription] = []
    for subject, adds in changes:
        if adds:
            there.append(sub(owner, subject))
            interest.add(there[-1])
        elif there:
            interest.remove(there.pop())
        for asked in (b"a", b"b", b"a.b", b"c", *INBOXES):
            expected = {one for one in there if pattern_matches(one.subject, asked)}
            assert set(interest.match(asked).plain) == expected
            assert interest.has(asked) is bool(expected)
            assert (interest.match(asked) is NOBODY) is not bool(expected)
        assert interest.count == len(there)


async def test_cached_subjects_are_limited_and_inboxes_are_cached_by_prefix() -> None:
    interest = Interest()
    for number in range(RESULTS_MAX + 1):
        interest.match(b"_INBOX.x.%d" % number)
    assert (len(interest._results), len(interest._inbox_results)) == (0, 1)
    for number in range(RESULTS_MAX + 1):
        interest.match(b"s.%d" % number)
        interest.match(b"_INBOX.%d.1" % number)
    assert len(interest._results) <= RESULTS_MAX
    assert len(interest._inbox_results) <= RESULTS_MAX


@pytest.mark.parametrize("other", [b"s.%d", b"s.%d.*", b"none.%d"])
async def test_subjects_of_many_subscriptions_are_remembered_in_bounded_memory(
    client: ConnectedClient, other: bytes
) -> None:
    interest, group = Interest(), 10_000
    for _ in range(group):
        interest.add(sub(client, b">", b"group"))
    for number in range(500):
        interest.add(sub(client, other % number))
    tracemalloc.start()
    try:
        for number in range(500):
            matched = interest.match(b"s.%d.x" % number if b"*" in other else b"s.%d" % number)
            assert [len(queue) for queue in matched.queues] == [group]
        assert tracemalloc.get_traced_memory()[0] < 16 << 20
    finally:
        tracemalloc.stop()


async def test_subjects_that_match_the_same_patterns_visit_their_subscriptions_once(
    client: ConnectedClient,
) -> None:
    interest, group = Interest(), 1000
    for number in range(group):
        interest.add(sub(client, b">", b"group"))
        interest.add(sub(client, b"s.%d.*" % number))
    interest.match(b"s.0.x")
    before = interest.visited
    for number in range(100):
        interest.match(b"t.%d" % number)
        interest.match(b"s.%d.x" % number)
        interest.match_all([b"_INBOX.%d.1" % number, b"_INBOX.%d.2" % number])
    assert interest.visited - before < 30 * group
    before = interest.visited
    interest.add(sub(client, b"u.*"))
    interest.match(b"t.1")
    assert interest.visited - before >= group


@pytest.mark.parametrize("subject", [b"a.b", b"a.*", b">"])
async def test_a_watcher_is_called_once_when_the_last_subscription_ends(
    client: ConnectedClient, subject: bytes
) -> None:
    interest, told = Interest(), list[str]()
    one, other = sub(client, subject), sub(client, b"a.b")
    interest.add(one)
    interest.add(other)
    interest.on_no_interest(b"a.b", lambda: told.append("gone"))
    interest.on_no_interest(b"a.c", lambda: told.append("another"))
    interest.remove(other)
    assert told == []
    interest.remove(one)
    assert told == (["gone"] if subject == b"a.b" else ["gone", "another"])
    interest.add(one)
    interest.remove(one)
    assert told.count("gone") == 1


@pytest.mark.parametrize("subject", [b"a.b", b"a.*"])
async def test_a_watcher_is_called_once_when_a_subscription_is_added(
    client: ConnectedClient, subject: bytes
) -> None:
    interest, told = Interest(), list[str]()
    interest.on_interest(b"a.b", lambda: told.append("come"))
    interest.add(sub(client, b"b"))
    assert told == []
    interest.add(sub(client, subject))
    interest.add(sub(client, subject))
    assert told == ["come"]


async def test_a_cancelled_watch_is_not_called_and_removed(
    client: ConnectedClient,
) -> None:
    interest, told = Interest(), list[str]()
    one = sub(client, b"a")
    interest.add(one)
    cancels = [interest.on_no_interest(b"a", lambda: told.append("gone")) for _ in range(2)]
    cancel_come = interest.on_interest(b"b", lambda: told.append("come"))
    for cancel in (*cancels, cancel_come, *cancels, cancel_come):
        cancel()
    assert not interest._no_interest_calls
    assert not interest._interest_calls
    interest.remove(one)
    interest.add(sub(client, b"b"))
    assert told == []


async def test_a_watcher_may_cancel_the_others(client: ConnectedClient) -> None:
    interest, told = Interest(), list[str]()
    one = sub(client, b"a.*")
    interest.add(one)
    cancels: list[Callable[[], None]] = []

    def first() -> None:
        told.append("first")
        for cancel in cancels:
            cancel()

    interest.on_no_interest(b"a.b", first)
    cancels.append(interest.on_no_interest(b"a.b", lambda: told.append("second")))
    cancels.append(interest.on_no_interest(b"a.c", lambda: told.append("third")))
    interest.remove(one)
    assert told == ["first"]


async def test_a_watcher_may_watch_again(client: ConnectedClient) -> None:
    interest, told = Interest(), list[str]()
    one = sub(client, b"a")
    interest.add(one)

    def again() -> None:
        told.append("gone")
        interest.on_no_interest(b"a", again)

    interest.on_no_interest(b"a", again)
    interest.remove(one)
    assert told == ["gone"]
    interest.add(one)
    interest.remove(one)
    assert told == ["gone", "gone"]


async def test_subjects_with_the_same_subscriptions_are_looked_up_together(
    client: ConnectedClient,
) -> None:
    interest, inboxes = Interest(), [b"_INBOX.x.1", b"_INBOX.x.2"]
    assert interest.match_all(inboxes) == ()
    plain = sub(client, b"_INBOX.x.*")
    interest.add(plain)
    assert interest.match_all(inboxes) == (plain,)
    other = sub(client, b"_INBOX.x.2")
    interest.add(other)
    assert interest.match_all(inboxes) is None
    interest.remove(other)
    interest.add(sub(client, b"_INBOX.>", b"group"))
    assert interest.match_all(inboxes) is None


@given(st.lists(st.sampled_from([b"$JS", b"ACK", b"a", b"*", b">"]), min_size=1, max_size=4))
async def test_subscriptions_that_may_match_acks_are_known(tokens: list[bytes]) -> None:
    subject = b".".join(tokens[: tokens.index(b">") + 1] if b">" in tokens else tokens)
    hears = any(
        pattern_matches(subject, ack) for ack in (b"$JS.ACK.a", b"$JS.ACK.a.a", b"$JS.ACK.ACK.$JS")
    )
    interest, one = Interest(), sub(the_client(), subject)
    interest.add(one)
    assert interest.hears_acks or not hears
    interest.remove(one)
    assert not interest.hears_acks


@pytest.mark.parametrize("subject", [b"_INBOX.a.*", b"$JS.API.>", b"*", b"*.a.>", b"$JS", b"a.>"])
async def test_most_hear_no_acks(client: ConnectedClient, subject: bytes) -> None:
    interest = Interest()
    interest.add(sub(client, subject))
    assert not interest.hears_acks


async def test_all_subscriptions_of_a_client_are_removed_together(client: ConnectedClient) -> None:
    interest, told = Interest(), list[bytes]()
    leaving = [sub(client, subject) for subject in (b"a.b", b"a.*", b"$JS.ACK.>", b"c", b"a.b")]
    staying = sub(client, b"c")
    for one in (*leaving, staying):
        interest.add(one)
    for subject in (b"a.b", b"a.x", b"c"):
        interest.on_no_interest(subject, lambda subject=subject: told.append(subject))  # type: ignore[misc]
        assert interest.match(subject) is not NOBODY
    interest.remove_all(leaving)
    assert sorted(told) == [b"a.b", b"a.x"]
    assert (interest.count, interest.hears_acks) == (1, False)
    assert (interest.match(b"a.b"), interest.match(b"c").plain) == (NOBODY, (staying,))
