import pytest
from pyspark.sql.types import StructType

from penstock.spark import options
from penstock.spark.errors import OptionInvalid
from penstock.spark.streaming import TopicStreamReader, within


def test_a_limit_is_shared_by_what_partitions_have() -> None:
    ahead = {"0": (0, 1000), "1": (100, 200), "2": (5, 5)}
    assert within(ahead, 2000) == {"0": 1000, "1": 200, "2": 5}
    assert within(ahead, 110) == {"0": 100, "1": 110, "2": 5}
    assert within(ahead, 1) == {"0": 1, "1": 100, "2": 5}


@pytest.mark.parametrize("most", [1, 2, 3, 7, 50])
def test_every_limit_is_used_in_full_and_never_exceeded(most: int) -> None:
    ahead = {str(n): (n, n + n * n) for n in range(6)}
    moved = within(ahead, most)
    assert sum(moved[n] - first for n, (first, _) in ahead.items()) == min(most, 55)
    assert all(first <= moved[n] <= max(first, end) for n, (first, end) in ahead.items())


def reader(**told: str) -> TopicStreamReader:
    read = options.read({"topic": "t", **told}, "http://127.0.0.1:1")
    return TopicStreamReader(read, StructType())


def test_a_stream_begins_at_the_earliest_or_at_numbers() -> None:
    assert reader().initialOffset() == {}
    assert reader(startingOffsets='{"0": 5, "1": -2}').initialOffset() == {"0": 5}
    for told in ({"startingOffsets": "latest"}, {"startingOffsets": '{"0": -1}'}):
        with pytest.raises(OptionInvalid, match=r"penstock\.spark\.stream"):
            reader(**told)
    with pytest.raises(OptionInvalid, match=r"penstock\.spark\.stream"):
        reader(startingTimestamp="1")
    for told in ({"endingOffsets": "5"}, {"endingTimestamp": "1"}):
        with pytest.raises(OptionInvalid, match="has no end"):
            reader(**told)
