import msgspec
import pytest

from penstock.spark import options, planning
from penstock.spark.errors import DataLost, OptionInvalid
from tests.unit.client.served import serving
from tests.unit.spark.plans import partition, plan

PLAN = plan([partition(0, 10, 50, 40), partition(1, 0, 5, 0), partition(2, 7, 7, 7)])


def wanted(**told: str) -> dict[int, tuple[int, int]]:
    return planning.selected_offsets(
        options.read({"topic": "t", **told}, "http://127.0.0.1:1"), PLAN
    )


def test_the_default_range_is_all_committed_offsets() -> None:
    assert wanted() == {0: (10, 50), 1: (0, 5)}
    assert wanted(startingOffsets="latest") == {}
    assert wanted(endingOffsets="earliest") == {}
    assert wanted(startingOffsets='{"0": 20}') == {0: (20, 50), 1: (0, 5)}
    assert wanted(startingOffsets='{"0": -1}', endingOffsets='{"1": 3}') == {1: (0, 3)}


def test_deleted_offsets_fail_or_are_skipped() -> None:
    with pytest.raises(DataLost, match="partition 0: offsets 3 to 9 are gone"):
        wanted(startingOffsets='{"0": 3}')
    assert wanted(startingOffsets='{"0": 3}', failOnDataLoss="false")[0] == (10, 50)
    assert wanted(startingOffsets='{"0": 3}', endingOffsets='{"0": 3}') == {}


def test_offsets_beyond_the_end_are_refused() -> None:
    for told in ({"startingOffsets": '{"1": 6}'}, {"endingOffsets": '{"1": 6}'}):
        with pytest.raises(OptionInvalid, match="partition 1 ends at 5, before 6"):
            wanted(**told)
    with pytest.raises(OptionInvalid, match="unknown partition 9"):
        wanted(startingOffsets='{"9": 0}')


def test_times_are_resolved_by_the_broker_up_to_the_end_of_the_plan() -> None:
    found = [{"partition_id": n, "partition_value": None, "offset": 45} for n in range(4)]
    with serving() as server:
        server.body = msgspec.json.encode({"offsets": found})
        told = {"topic": "t", "broker": server.url, "startingTimestamp": "1000"}
        assert planning.selected_offsets(options.read(told), PLAN) == {0: (45, 50)}
        assert "timestamp=1000000" in server.seen[0].path
