import pytest

from penstock.delivery.consumers.samples import Sample, Samples, samples_of
from tests.unit.delivery.lab import lab
from tests.unit.tiers.core import World


def test_every_ack_is_told_with_the_time_since_the_last_delivery() -> None:
    samples = Samples(100)
    samples.delivered([1, 2], 1, 10)
    samples.delivered([1], 3, 20)
    assert samples.acked([1, 2, 9], 25) == [Sample(3, 1, 5, 2), Sample(2, 2, 15, 1)]
    assert samples.acked([1], 30) == []


def test_a_share_of_the_acks_is_told() -> None:
    samples = Samples(25)
    samples.delivered(range(1, 101), 1, 0)
    assert len(samples.acked(range(1, 101), 1)) == 25


@pytest.mark.parametrize(("text", "percent"), [("", None), ("0", None), ("50", 50), ("150%", 100)])
def test_a_frequency_is_a_percentage(text: str, percent: int | None) -> None:
    found = samples_of(text)
    assert (None if found is None else found._percent) == percent


async def test_whoever_listens_is_told_how_long_an_ack_took(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d", sample_freq="100")
        sid = peer.subscribe("$JS.EVENT.METRIC.>")
        first = await peer.next(peer.pull("S", "d"))
        peer.publish(first.reply, b"+ACK")
        told = await peer.next(sid)
        assert told.subject == "$JS.EVENT.METRIC.CONSUMER.ACK.S.d"
        assert told.payload.startswith(b'{"type":"io.nats.jetstream.metric.v1.consumer_ack","id":"')
        assert b'"stream":"S","consumer":"d","consumer_seq":1,"stream_seq":1,"ack_time":' in (
            told.payload
        )
        assert told.payload.endswith(b',"deliveries":1}')
