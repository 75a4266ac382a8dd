from datetime import UTC, datetime

from penstock.model import names
from penstock.spark.pipelines.report import standing
from tests.unit.spark.plans import partition, plan


def test_offsets_of_partitions_add_up() -> None:
    made = plan([partition(0, 2, 10, 8, [2, 3, 7]), partition(1, 5, 5, 5)])
    assert standing.partitions(made).to_pylist() == [
        {
            "partition": 0,
            "value": None,
            "start_offset": 2,
            "hot_offset": 8,
            "next_offset": 10,
            "deleted": 3,
            "messages": 5,
        },
        {
            "partition": 1,
            "value": None,
            "start_offset": 5,
            "hot_offset": 5,
            "next_offset": 5,
            "deleted": 0,
            "messages": 0,
        },
    ]


def test_gaps_are_runs_of_offsets() -> None:
    made = plan([partition(0, 0, 10, 10), partition(3, 2, 10, 8, [2, 3, 7])])
    assert [tuple(row.values()) for row in standing.gaps(made).to_pylist()] == [
        (3, 2, 4, 2),
        (3, 7, 8, 1),
    ]


def test_jobs_are_counted_by_consumer_and_state() -> None:
    time = "2026-11-16T06:00:00.25Z"
    told = {
        "worker": [
            {"status": 1001, "count": 2, "oldestItemTimestamp": time, "newestItemTimestamp": ""},
            {"status": 1004, "count": 1, "oldestItemTimestamp": "", "newestItemTimestamp": ""},
        ],
        "mailer": [],
    }
    oldest = datetime(2026, 11, 16, 6, 0, 0, 250_000, UTC)
    assert [tuple(row.values()) for row in standing.job_rows(told).to_pylist()] == [
        ("worker", "queued", 2, oldest, None),
        ("worker", "dead", 1, None, None),
    ]
    assert standing.job_rows({}).num_rows == 0


def test_only_topics_of_the_default_namespace_may_be_channels() -> None:
    assert standing.may_be_channel(names.topic("orders"))
    assert not standing.may_be_channel(names.topic("default/other/orders"))
