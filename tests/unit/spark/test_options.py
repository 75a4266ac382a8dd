import pytest

from penstock.model import names
from penstock.spark import options
from penstock.spark.errors import OptionInvalid
from penstock.spark.options import EARLIEST, LATEST

BROKER = "http://127.0.0.1:1"


def test_options_have_defaults_and_case_insensitive_names() -> None:
    read = options.read({"TOPIC": "t"}, BROKER)
    assert (read.topic, read.broker) == (names.topic("t"), BROKER)
    assert (read.starting, read.ending, read.fail_on_data_loss) == (EARLIEST, LATEST, True)
    assert (read.partitions_min, read.through_broker, read.transaction) == (1, False, None)
    told = {"topic": "t", "namespace": "a/b", "broker": "http://h:2", "failondataloss": "FALSE"}
    read = options.read({**told, "path": "spark puts this here"}, BROKER)
    assert (str(read.topic), read.broker, read.fail_on_data_loss) == ("a/b/t", "http://h:2", False)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("earliest", EARLIEST),
        ("LATEST", LATEST),
        ("17", 17),
        ('{"0": 5, "3": -2}', {0: 5, 3: -2}),
        ('{"orders": {"0": 5, "1": -1}}', {0: 5, 1: -1}),
        ('{"0": 5}', {0: 5}),
        ("{}", {}),
    ],
)
def test_offsets_have_the_syntax_of_kafka_s_source(text: str, offsets: object) -> None:
    assert options.read({"topic": "t", "startingOffsets": text}, BROKER).starting == offsets


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1700000000000", 1_700_000_000_000_000),
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T02:00:00.000001+02:00", 1),
        ("1970-01-01T05:45:00+05:45", 0),
    ],
)
def test_times_are_milliseconds_or_iso_with_a_zone(text: str, microseconds: int) -> None:
    assert (
        options.read({"topic": "t", "startingTimestamp": text}, BROKER).starting_us == microseconds
    )


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "option topic is missing"),
        ({"topic": "t", "startingofset": "1"}, "unknown option 'startingofset'"),
        ({"topic": "t", "startingOffsets": "soon"}, "startingOffsets must be earliest"),
        ({"topic": "t", "endingOffsets": '{"0": "x"}'}, "endingOffsets must be earliest"),
        ({"topic": "t", "endingOffsets": '{"0": -3}'}, "endingOffsets must be earliest"),
        ({"topic": "t", "endingOffsets": "[1]"}, "endingOffsets must be earliest"),
        ({"topic": "t", "startingTimestamp": "2026-11-16T00:00:00"}, "no time zone"),
        ({"topic": "t", "startingTimestamp": "noon"}, "milliseconds since 1970"),
        ({"topic": "t", "startingTimestamp": "1", "startingOffsets": "1"}, "not both"),
        ({"topic": "t", "minPartitions": "0"}, "minPartitions must be a whole number from 1"),
        ({"topic": "t", "failOnDataLoss": "no"}, "must be true or false"),
        ({"topic": "t", "through": "air"}, "must be bucket or broker"),
        ({"topic": "t", "txnAppId": "a"}, "need each other"),
        ({"topic": "t", "txnAppId": "once-a", "txnVersion": "1"}, "must not begin with 'once-'"),
    ],
)
def test_invalid_options_are_refused(told: dict[str, str], words: str) -> None:
    with pytest.raises(OptionInvalid, match=words):
        options.read(told, BROKER)


def test_credentials_and_transactions_are_not_changed() -> None:
    told = {"topic": "t", "store.access_key": "k", "txnAppId": "a", "txnVersion": "0"}
    read = options.read(told, BROKER)
    assert (dict(read.credentials), read.transaction) == ({"access_key": "k"}, ("a", 0))
