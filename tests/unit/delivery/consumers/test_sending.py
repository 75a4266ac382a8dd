from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.delivery.consumers.sending import InboxDeliveries, Parcel, Sender, status_block
from penstock.ledger.requests import Status
from penstock.streams.rows import Rows
from tests.broker.consumers import lab
from tests.broker.storage import World
from tests.unit.delivery.consumers.test_consumer import numbers
from tests.unit.delivery.recording_outlet import RecordingOutlet


def test_a_status_is_a_header_block() -> None:
    assert status_block(Status(b"in", 404, "No Messages")) == b"NATS/1.0 404 No Messages\r\n\r\n"
    left = (("Nats-Pending-Messages", 3), ("Nats-Pending-Bytes", 0))
    assert status_block(Status(b"in", 408, "Request Timeout", left)) == (
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 0\r\n\r\n"
    )


LONG = 60_000_000_000


def test_unsettled_messages_of_a_disconnected_client_are_reported() -> None:
    outlet, gone = RecordingOutlet(), list[list[int]]()
    holders = InboxDeliveries(outlet, gone.append)
    holders.assign(b"a", [1, 2, 3])
    holders.assign(b"b", [4, 3])
    holders.remove([2, 9])
    outlet.departures[b"a"]()
    outlet.departures[b"b"]()
    assert gone == [[1], [3, 4]]
    holders.remove([1, 3, 4])


def test_inboxes_without_messages_are_not_watched() -> None:
    outlet = RecordingOutlet()
    holders = InboxDeliveries(outlet, lambda seqs: None)
    holders.assign(b"a", [1, 2])
    holders.assign(b"a", [1])
    assert list(outlet.departures) == [b"a"]
    holders.remove([1])
    assert list(outlet.departures) == [b"a"]
    holders.assign(b"b", [2])
    assert list(outlet.departures) == [b"b"]


async def test_messages_are_redelivered_when_the_connection_ends_and_not_before(
    world: World,
) -> None:
    async with lab(world) as here:
        peer, other = await here.peer(), await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0", b"m1", b"m2")
        option = {"penstock.redeliver_on_disconnect": "true"}
        await peer.consumer("S", "d", ack_wait=10 * LONG, metadata=option)
        sid = other.pull("S", "d", b"2")
        got = await other.several(2, sid)
        other.publish(got[0].reply, b"+ACK")
        other.unsubscribe(sid)
        await other.synced()
        mine = peer.pull("S", "d", {"batch": 5, "expires": 10 * LONG})
        assert numbers(await peer.next(mine))[:2] == [1, 3]
        await peer.synced()
        assert peer.waiting(mine) == []
        await other.end()
        assert numbers(await peer.next(mine))[:2] == [2, 2]


ROWS = Rows(
    range(4, 7),
    [b"a", b"b", b"c"],
    [b"", b"NATS/1.0\r\nX: y\r\n\r\n", b""],
    [b"0", b"11", b""],
    [7, 8, 9],
)


def parcel(rows: Rows = ROWS, pin: str = "", *, headers_only: bool = False) -> Parcel:
    sender = Sender(RecordingOutlet(), "S", "d", headers_only=headers_only)
    return sender.parcel(rows, [1, 2, 1], 10, range(5, 2, -1), pin)


def test_a_message_keeps_its_subject_and_headers_and_gets_an_ack_subject() -> None:
    assert parcel() == Parcel(
        ROWS.subjects,
        [
            b"$JS.ACK.S.d.1.5.10.7000.5",
            b"$JS.ACK.S.d.2.6.11.8000.4",
            b"$JS.ACK.S.d.1.7.12.9000.3",
        ],
        ROWS.headers,
        ROWS.payloads,
    )


def test_gaps_between_offsets_are_preserved() -> None:
    rows = replace(ROWS, offsets=[4, 9, 11])
    seqs = [reply.split(b".")[5] for reply in parcel(rows).replies]
    assert seqs == [b"5", b"10", b"12"]


def test_headers_only_names_the_size_of_the_omitted_payload() -> None:
    made = parcel(headers_only=True)
    assert made.payloads == [b"", b"", b""]
    assert made.headers == [
        b"NATS/1.0\r\nNats-Msg-Size: 1\r\n\r\n",
        b"NATS/1.0\r\nX: y\r\nNats-Msg-Size: 2\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Size: 0\r\n\r\n",
    ]


def test_every_message_carries_the_pin() -> None:
    made = parcel(replace(ROWS, headers=None), "p1")
    assert made.headers == [b"NATS/1.0\r\nNats-Pin-Id: p1\r\n\r\n"] * 3


def test_sizes_count_subject_ack_subject_headers_and_payload() -> None:
    made = parcel()
    assert made.sizes() == [25 + 1 + 1, 25 + 1 + 18 + 2, 25 + 1]
    assert made.size() == sum(made.sizes())


def test_a_parcel_is_divided_by_positions() -> None:
    made = parcel()
    assert made.take(range(3)) is made
    assert made.take(range(1, 3)).subjects == [b"b", b"c"]
    assert made.take([0, 2]).payloads == [b"0", b""]
    assert parcel(replace(ROWS, headers=None)).take([1]).headers is None


def test_sending_returns_the_number_of_received_messages() -> None:
    outlet = RecordingOutlet(room=2)
    sender = Sender(outlet, "S", "d", headers_only=False)
    assert sender.send(b"in", parcel()) == 2
    sent: Sequence[tuple[bytes, bytes]] = [(row.inbox, row.subject) for row in outlet.rows]
    assert sent == [(b"in", b"a"), (b"in", b"b")]
