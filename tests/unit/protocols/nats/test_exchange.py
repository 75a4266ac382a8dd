"""The routing of publishes, over real sockets; bytes and order are those of nats-server."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from penstock.protocols.nats.client import ConnectedClient
from penstock.protocols.nats.exchange import TARGETS_MAX, Exchange, part
from penstock.protocols.nats.interest import Interest
from penstock.wire.parser import Publishes
from tests.broker.nats import BLOCK, NatsSite
from tests.eventually import eventually

NOBODY: Final = b"HMSG r 1 38 38\r\nNATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n\r\n"


class RecordingTarget:
    """A target that records the runs it receives."""

    def __init__(self) -> None:
        self.runs: list[Publishes] = []

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        self.runs.append(run)


@pytest.mark.feature("P01")
async def test_messages_reach_all_matching_subscriptions() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        got = await talk.answer(
            b"SUB a.> 1\r\nSUB a.*.c 2\r\nSUB > 3\r\nPUB a.b.c 1\r\nx\r\nPUB a 1\r\ny\r\n"
        )
        assert Counter(got.split(b"MSG ")[1:]) == Counter(
            [
                b"a.b.c 1 1\r\nx\r\n",
                b"a.b.c 2 1\r\nx\r\n",
                b"a.b.c 3 1\r\nx\r\n",
                b"a 3 1\r\ny\r\n",
            ]
        )


@pytest.mark.feature("P01")
@pytest.mark.parametrize("count", [1, 2, 5])
async def test_headers_and_replies_arrive_as_they_were_sent(count: int) -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        sent = (
            b"HPUB foo rep 18 20\r\n" + BLOCK + b"hi\r\nPUB foo 2\r\nho\r\nHPUB foo 0 2\r\nhe\r\n"
        )
        got = await talk.answer(b"SUB foo 7\r\n", sent * count)
        one = (
            b"HMSG foo 7 rep 18 20\r\n"
            + BLOCK
            + b"hi\r\nMSG foo 7 2\r\nho\r\nMSG foo 7 2\r\nhe\r\n"
        )
        assert got == one * count


@pytest.mark.feature("P01")
async def test_a_client_that_knows_no_headers_gets_messages_without() -> None:
    async with NatsSite() as opened:
        plain = await opened.connect(headers=False, no_responders=False)
        await plain.answer(b"SUB > 7\r\n")
        talk = await opened.connect()
        block = b"HPUB foo r 18 20\r\n" + BLOCK + b"hi\r\n"
        await talk.answer(block, b"PUB bar 1\r\nx\r\n", block)
        assert await plain.answer() == (
            b"MSG foo 7 r 2\r\nhi\r\nMSG bar 7 1\r\nx\r\nMSG foo 7 r 2\r\nhi\r\n"
        )
        opened.server.exchange.send_rows(b"in", [b"s"], [b"r"], [BLOCK], [b"p"])
        assert await plain.answer() == b"MSG s 7 r 1\r\np\r\n"


@pytest.mark.feature("P01")
@pytest.mark.parametrize("kind", [b"PUB a 1\r\nx\r\n", b"PUB a r 1\r\nx\r\n"])
async def test_without_echo_a_client_gets_nothing_of_its_own(kind: bytes) -> None:
    async with NatsSite() as opened:
        talk = await opened.connect(echo=False)
        other = await opened.connect()
        await other.answer(b"SUB a 2\r\n")
        assert await talk.answer(b"SUB a 1\r\n", kind * 3) == b""
        assert (await other.answer()).count(b"MSG a 2") == 3


@pytest.mark.feature("P01")
async def test_of_a_queue_group_one_gets_a_message_and_each_gets_some() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        subscribed = b"SUB foo q 1\r\nSUB foo q 2\r\nSUB foo r 3\r\nSUB foo 4\r\n"
        got = await talk.answer(subscribed, b"PUB foo 1\r\nx\r\n" * 200)
        sids = Counter(line.split()[2] for line in got.split(b"\r\n") if line.startswith(b"MSG"))
        assert sids[b"1"] + sids[b"2"] == sids[b"3"] == sids[b"4"] == 200
        assert sids[b"1"]
        assert sids[b"2"]


@pytest.mark.feature("P01")
async def test_a_queue_group_without_its_sender_still_gets_every_message() -> None:
    async with NatsSite() as opened:
        other = await opened.connect()
        await other.answer(b"SUB foo q 1\r\n")
        talk = await opened.connect(echo=False)
        assert await talk.answer(b"SUB foo q 1\r\n", b"PUB foo 1\r\nx\r\n" * 50) == b""
        assert (await other.answer()).count(b"MSG") == 50


@pytest.mark.feature("P01")
@pytest.mark.parametrize(
    ("options", "sent", "got"),
    [
        ({}, b"SUB r 1\r\nPUB nobody r 0\r\n\r\n", NOBODY),
        ({}, b"SUB r 1\r\n" + b"PUB nobody r 0\r\n\r\n" * 3, NOBODY * 3),
        ({}, b"SUB r 1\r\nPUB x 0\r\n\r\nPUB nobody r 0\r\n\r\n", NOBODY),
        ({}, b"SUB r 1\r\nPUB nobody 0\r\n\r\n", b""),
        ({}, b"PUB nobody r 0\r\n\r\n", b""),
        ({"no_responders": False}, b"SUB r 1\r\nPUB nobody r 0\r\n\r\n", b""),
        ({"echo": False}, b"SUB r 1\r\nPUB nobody r 0\r\n\r\n", NOBODY),
        ({"echo": False}, b"SUB r 1\r\nSUB nobody 2\r\nPUB nobody r 0\r\n\r\n", NOBODY),
        ({"verbose": True}, b"SUB r 1\r\nPUB nobody r 0\r\n\r\n", b"+OK\r\n" * 3 + NOBODY),
        (
            {},
            b"SUB r 1\r\nSUB nobody 2\r\nUNSUB 2 1\r\n" + b"PUB nobody r 0\r\n\r\n" * 2,
            b"MSG nobody 2 r 0\r\n\r\n" + NOBODY,
        ),
    ],
)
async def test_a_request_without_subscriber_receives_no_responders(
    options: dict[str, bool], sent: bytes, got: bytes
) -> None:
    async with NatsSite() as opened:
        talk = await opened.connect(**options)
        assert await talk.answer(sent) == got


@pytest.mark.feature("P01")
@pytest.mark.parametrize("message", [b"PUB foo 1\r\nx\r\n", b"PUB foo r 1\r\nx\r\n"])
async def test_a_subscription_ends_in_the_middle_of_a_run(message: bytes) -> None:
    async with NatsSite() as opened:
        talk = await opened.connect(no_responders=False)
        other = await opened.connect()
        await other.answer(b"SUB foo 9\r\n")
        got = await talk.answer(b"SUB foo 1\r\nSUB foo 2\r\nUNSUB 1 3\r\n", message * 7)
        assert (got.count(b"MSG foo 1 "), got.count(b"MSG foo 2 ")) == (3, 7)
        assert (await other.answer()).count(b"MSG foo 9 ") == 7
        assert opened.server.interest.count == 2
        got = await talk.answer(message)
        assert (got.count(b"MSG foo 1 "), got.count(b"MSG foo 2 ")) == (0, 1)


@pytest.mark.feature("P01")
async def test_a_run_for_one_inbox_keeps_the_subject_of_each_message() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        await talk.answer(b"SUB in.1 5\r\nUNSUB 5 3\r\n")
        exchange = opened.server.exchange
        subjects, replies, payloads = [b"a", b"b"], [b"r1", b"r2"], [b"1", b"22"]
        assert exchange.send_rows(b"in.1", subjects, replies, [b"", BLOCK], payloads) == 2
        assert await talk.answer() == (
            b"MSG a 5 r1 1\r\n1\r\nHMSG b 5 r2 18 20\r\n" + BLOCK + b"22\r\n"
        )
        assert exchange.send_rows(b"in.1", subjects, replies, [BLOCK, b""], payloads) == 1
        assert await talk.answer() == b"HMSG a 5 r1 18 19\r\n" + BLOCK + b"1\r\n"
        assert not exchange.has_interest(b"in.1")
        assert exchange.send_rows(b"in.1", subjects, replies, None, payloads) == 0


@pytest.mark.feature("P01")
async def test_a_run_without_headers_stops_where_its_subscription_ends() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        await talk.answer(b"SUB in 5\r\nUNSUB 5 2\r\n")
        rows = [[b"s"] * 3, [b"r"] * 3, None, [b"1", b"2", b"3"]]
        assert opened.server.exchange.send_rows(b"in", *rows) == 2  # type: ignore[arg-type]
        assert await talk.answer() == b"MSG s 5 r 1\r\n1\r\nMSG s 5 r 1\r\n2\r\n"


async def test_answers_go_each_to_its_own_reply() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        await talk.answer(b"SUB r.* 1\r\nSUB q 2\r\nUNSUB 2 2\r\n")
        opened.server.exchange.answer([b"r.1", b"r.2", b"gone"], [b"one", b"two", b"three"])
        assert await talk.answer() == b"MSG r.1 1 3\r\none\r\nMSG r.2 1 3\r\ntwo\r\n"
        opened.server.exchange.answer([b"q"] * 3, [b"1", b"2", b"3"])
        assert await talk.answer() == b"MSG q 2 1\r\n1\r\nMSG q 2 1\r\n2\r\n"
        opened.server.exchange.answer([b"q"] * 3, [b"1", b"2", b"3"])
        assert await talk.answer() == b""


@pytest.mark.feature("T26")
@pytest.mark.parametrize("replies", [[b"r", b"r"], [b"r", b"s"], [b"r", b"q"]])
async def test_confirmations_are_not_written_once_the_lease_has_ended(replies: list[bytes]) -> None:
    async with NatsSite() as opened:
        talk, other = await opened.connect(), await opened.connect()
        await talk.answer(b"SUB r 1\r\nSUB s 1\r\n")
        await other.answer(b"SUB q 1\r\n")
        exchange, valid = opened.server.exchange, True
        opened.server.clients.enable_jetstream(lambda: valid)
        exchange.answer([b"r"], [b"in time"])
        assert await talk.answer() == b"MSG r 1 7\r\nin time\r\n"
        # The lease ends when the answers have been made and not been written.
        exchange.answer(replies, [b"late", b"late"])
        valid = False
        assert await talk.closed() == b""


@pytest.mark.feature("T26")
async def test_replies_that_confirm_nothing_need_no_lease() -> None:
    async with NatsSite() as opened:
        talk = await opened.connect()
        await talk.answer(b"SUB r 1\r\n")
        opened.server.clients.enable_jetstream(lambda: False)
        opened.server.exchange.answer([b"r"], [b"refused"], confirms=False)
        assert await talk.answer(b"PUB r 2\r\nhi\r\n") == (
            b"MSG r 1 7\r\nrefused\r\nMSG r 1 2\r\nhi\r\n"
        )


async def test_answers_to_one_inbox_reach_all_its_subscribers() -> None:
    async with NatsSite() as opened:
        talk, other = await opened.connect(), await opened.connect()
        await talk.answer(b"SUB r.* 1\r\nSUB r.> 2\r\nUNSUB 2 1\r\n")
        await other.answer(b"SUB *.* 3\r\n")
        opened.server.exchange.answer([b"r.1", b"r.2"], [b"one", b"two"])
        assert await other.answer() == b"MSG r.1 3 3\r\none\r\nMSG r.2 3 3\r\ntwo\r\n"
        told = await talk.answer()
        assert sorted(told.split(b"MSG ")[1:]) == [
            b"r.1 1 3\r\none\r\n",
            b"r.1 2 3\r\none\r\n",
            b"r.2 1 3\r\ntwo\r\n",
        ]


async def test_neighbours_that_go_to_the_same_target_go_together() -> None:
    async with NatsSite() as opened:
        one, other = RecordingTarget(), RecordingTarget()
        targets = {b"a": one, b"b": one, b"c": other}
        opened.server.exchange.route(targets.get)
        talk = await opened.connect()
        subjects = [b"a", b"b", b"x", b"c", b"c", b"a"]
        sent = b"".join(b"PUB %b r%d 1\r\n%d\r\n" % (s, n, n) for n, s in enumerate(subjects))
        got = await talk.answer(b"SUB c 1\r\nSUB r2 2\r\n", sent)
        assert one.runs == [
            Publishes([b"a", b"b"], [b"r0", b"r1"], None, [b"0", b"1"]),
            Publishes([b"a"], [b"r5"], None, [b"5"]),
        ]
        assert other.runs == [Publishes([b"c", b"c"], [b"r3", b"r4"], None, [b"3", b"4"])]
        assert got.count(b"MSG c 1 r") == 2
        assert got.count(b"Nats-Subject: x") == 1


async def test_targets_are_resolved_again_after_a_change() -> None:
    async with NatsSite() as opened:
        exchange, taken = opened.server.exchange, RecordingTarget()
        targets: dict[bytes, RecordingTarget] = {}
        exchange.route(targets.get)
        talk = await opened.connect()
        await talk.answer(b"PUB a 0\r\n\r\n")
        targets[b"a"] = taken
        await talk.answer(b"PUB a 0\r\n\r\n")
        assert not taken.runs
        exchange.forget_targets()
        await talk.answer(b"PUB a 0\r\n\r\n")
        assert len(taken.runs) == 1


async def test_acks_are_passed_to_the_ack_target_as_one_run() -> None:
    async with NatsSite() as opened:
        acks, api = RecordingTarget(), RecordingTarget()
        exchange = opened.server.exchange
        exchange.route(lambda subject: api if subject == b"$JS.API.X" else None, acks)
        talk = await opened.connect()
        await talk.answer(b"PUB $JS.ACK.a.1 0\r\n\r\nPUB $JS.ACK.a.2 r 4\r\n+ACK\r\n")
        assert acks.runs == [
            Publishes([b"$JS.ACK.a.1", b"$JS.ACK.a.2"], [b"", b"r"], None, [b"", b"+ACK"])
        ]
        acks.runs.clear()
        await talk.answer(b"PUB $JS.ACK.a.3 0\r\n\r\nPUB $JS.API.X r 0\r\n\r\n")
        assert acks.runs == [Publishes([b"$JS.ACK.a.3"], [b""], None, [b""])]
        assert [run.subjects for run in api.runs] == [[b"$JS.API.X"]]


@pytest.mark.parametrize("listens", [b"$JS.ACK.a.*", b">"])
async def test_subscribers_receive_acks_beside_the_ack_target(listens: bytes) -> None:
    async with NatsSite() as opened:
        exchange, acks = opened.server.exchange, RecordingTarget()
        exchange.route(lambda subject: None, acks)
        talk, listener = await opened.connect(), await opened.connect()
        await listener.answer(b"SUB %b 9\r\n" % listens)
        await talk.answer(b"PUB $JS.ACK.a.1 0\r\n\r\nPUB $JS.ACK.a.2 r 4\r\n+ACK\r\n")
        await talk.answer(b"PUB $JS.ACK.a.3 0\r\n\r\n")
        assert await listener.answer() == (
            b"MSG $JS.ACK.a.1 9 0\r\n\r\nMSG $JS.ACK.a.2 9 r 4\r\n+ACK\r\n"
            b"MSG $JS.ACK.a.3 9 0\r\n\r\n"
        )
        subjects = [subject for run in acks.runs for subject in run.subjects]
        assert subjects == [b"$JS.ACK.a.1", b"$JS.ACK.a.2", b"$JS.ACK.a.3"]


def test_cached_targets_are_limited() -> None:
    exchange = Exchange(Interest())
    for number in range(TARGETS_MAX + 1):
        exchange._target(b"s.%d" % number)
    assert len(exchange._targets) <= TARGETS_MAX


def test_a_part_of_a_run_has_every_column() -> None:
    run = Publishes([b"a", b"b", b"c"], [b"1", b"2", b"3"], [b"x", b"y", b"z"], [b"p", b"q", b"r"])
    assert part(run, 1, 2) == Publishes([b"b"], [b"2"], [b"y"], [b"q"])
    assert part(run, 0, 3) is run
    assert part(run._replace(headers=None), 0, 1) == Publishes([b"a"], [b"1"], None, [b"p"])


async def test_answers_to_many_inboxes_of_one_client_arrive_each_under_its_own() -> None:
    async with NatsSite() as opened:
        talk, other = await opened.connect(), await opened.connect()
        await talk.answer(b"SUB _INBOX.a.* 1\r\nUNSUB 1 4\r\n")
        await other.answer(b"SUB _INBOX.b.* 2\r\n")
        exchange = opened.server.exchange
        exchange.answer([b"_INBOX.a.%d" % n for n in range(3)], [b"0", b"1", b"2"])
        assert await talk.answer() == b"".join(
            b"MSG _INBOX.a.%d 1 1\r\n%d\r\n" % (n, n) for n in range(3)
        )
        exchange.answer([b"_INBOX.a.3", b"_INBOX.b.4", b"_INBOX.a.5"], [b"3", b"4", b"5"])
        assert await talk.answer() == b"MSG _INBOX.a.3 1 1\r\n3\r\n"
        assert await other.answer() == b"MSG _INBOX.b.4 2 1\r\n4\r\n"
        exchange.answer([b"_INBOX.a.6", b"_INBOX.a.7"], [b"6", b"7"])
        assert await talk.answer() == b""


async def test_a_held_run_is_passed_to_its_current_target() -> None:
    async with NatsSite() as opened:
        exchange, taken = opened.server.exchange, RecordingTarget()
        talk = await opened.connect()
        await talk.answer(b"SUB r 1\r\nSUB seen 2\r\n")
        (client,) = opened.server.clients.open.values()
        exchange.route({b"taken": taken}.get)
        run = Publishes([b"taken", b"seen", b"nobody"], [b"r"] * 3, None, [b"1", b"2", b"3"])
        exchange.hand_over(client, run)
        assert taken.runs == [Publishes([b"taken"], [b"r"], None, [b"1"])]
        assert await talk.answer() == NOBODY


async def test_observers_receive_the_number_of_a_disconnected_client() -> None:
    async with NatsSite() as opened:
        gone: list[int] = []
        opened.server.exchange.departures.add(gone.append)
        talk = await opened.connect()
        await talk.answer(b"PING\r\n")
        (number,) = opened.server.clients.open
        assert gone == []
        await talk.end()

        async def told() -> bool:
            return gone == [number]

        await eventually(told)
