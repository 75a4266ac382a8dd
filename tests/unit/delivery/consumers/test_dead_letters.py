import pytest

from penstock.delivery.consumers.dead_letters import DeadLetterCopies
from tests.broker.consumers import Lab, Peer, lab, until
from tests.broker.storage import World

TO_DLQ = {"penstock.dead_letter_subject": "dlq.orders"}


async def given_up(here: Lab, retention: str = "limits") -> Peer:
    """Create a message whose only delivery was naked."""
    peer = await here.peer()
    await peer.stream("DLQ", "dlq.>")
    await peer.stream("S", "s.>", retention=retention)
    block = b"NATS/1.0\r\nX: y\r\n\r\n"
    peer.send(b"HPUB s.a %d %d\r\n%bm0\r\n" % (len(block), len(block) + 2, block))
    await peer.consumer("S", "d", max_deliver=1, metadata=TO_DLQ)
    first = await peer.next(peer.pull("S", "d"))
    peer.publish(first.reply, b"-NAK")
    await peer.synced()
    return peer


async def test_an_exhausted_message_is_stored_with_headers_that_name_its_origin(
    world: World,
) -> None:
    async with lab(world) as here:
        peer = await given_up(here)
        await until(lambda: here.stream("DLQ").messages == 1)
        await peer.consumer("DLQ", "reader")
        letter = await peer.next(peer.pull("DLQ", "reader"))
        assert (letter.subject, letter.payload) == ("dlq.orders", b"m0")
        assert letter.headers == (
            b"NATS/1.0\r\nX: y\r\nNats-Msg-Id: S.d.1\r\nPenstock-Dead-Letter: max_deliver\r\n"
            b"Penstock-Stream: S\r\nPenstock-Consumer: d\r\nPenstock-Subject: s.a\r\n"
            b"Penstock-Sequence: 1\r\nPenstock-Deliveries: 1\r\n\r\n"
        )
        await until(lambda: not here.consumer("S", "d").ledger.exhausted())
        assert here.stream("S").messages == 1


async def test_a_work_queue_deletes_a_stored_dead_letter(world: World) -> None:
    async with lab(world) as here:
        await given_up(here, "workqueue")
        await until(lambda: here.stream("S").messages == 0)
        assert here.stream("DLQ").messages == 1


async def test_without_a_stream_for_the_subject_a_dead_letter_is_not_settled(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s.>", "dlq.>")
        await peer.stored("s.a", b"m0")
        await peer.consumer("S", "d", max_deliver=1, filter_subject="s.a", metadata=TO_DLQ)
        first = await peer.next(peer.pull("S", "d"))
        peer.publish(first.reply, b"-NAK")
        await peer.synced()
        await until(lambda: not here.consumers("S")._dead_letters._tasks)
        assert here.consumer("S", "d").ledger.exhausted() == [1]
        assert here.stream("S").messages == 1


@pytest.mark.feature("P18")
async def test_dead_letters_lost_in_a_crash_are_stored_at_the_next_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_yet(*wanted: object) -> bool:
        return False

    async with lab(world) as here:
        with monkeypatch.context() as patched:
            patched.setattr(DeadLetterCopies, "_copy", not_yet)
            await given_up(here)
            await here.settled("S")
            found = await here.crash()
    async with lab(world, found) as again:
        await until(lambda: again.stream("DLQ").messages == 1)
        await until(lambda: not again.consumer("S", "d").ledger.exhausted())
