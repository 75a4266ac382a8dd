"""Options of the data source, named as in Spark's Kafka source where they mean the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.client.exchange import broker_url
from penstock.formats.bodies import ONCE
from penstock.model import names
from penstock.model.names import TopicName
from penstock.objects.described import CREDENTIALS
from penstock.spark.errors import OptionInvalid

EARLIEST: Final = -2
LATEST: Final = -1

KNOWN: Final = (
    "topic",
    "namespace",
    "broker",
    "through",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "txnAppId",
    "txnVersion",
    *(f"store.{name}" for name in CREDENTIALS),
)
_FOLDED: Final = {name.lower(): name for name in KNOWN}
_SPARKS_OWN: Final = frozenset(("path", "paths", "checkpointlocation", "queryname"))
"""What Spark itself puts among the options."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Offsets = int | dict[int, int]
"""One for all partitions, or by partition; EARLIEST and LATEST are negative."""


@dataclass(frozen=True, slots=True)
class Options:
    """All options, read and checked; raises OptionInvalid when they contradict one another."""

    topic: TopicName
    broker: str
    through_broker: bool = False
    starting: Offsets = EARLIEST
    ending: Offsets = LATEST
    starting_us: int | None = None
    ending_us: int | None = None
    offsets_per_trigger_max: int | None = None
    partitions_min: int = 1
    cores: int = 1
    """How many tasks Spark runs at a time."""
    fail_on_data_loss: bool = True
    transaction: tuple[str, int] | None = None
    credentials: Mapping[str, str] = field(default_factory=dict)


def read(given: Mapping[str, str], broker: str | None = None, cores: int = 1) -> Options:
    """The options as Spark hands them over; names in any case."""
    told = {_known(name): value for name, value in given.items() if not _is_sparks(name)}
    if "topic" not in told:
        raise OptionInvalid("option topic is missing")
    for kind in ("starting", "ending"):
        if f"{kind}Offsets" in told and f"{kind}Timestamp" in told:
            raise OptionInvalid(f"give {kind}Offsets or {kind}Timestamp, not both")
    return Options(
        topic=names.topic(
            told["topic"], names.namespace(told.get("namespace", str(names.DEFAULT_NAMESPACE)))
        ),
        broker=broker_url(told.get("broker") or broker),
        through_broker=_choice(told, "through", ("bucket", "broker")) == "broker",
        starting=_offsets(told, "startingOffsets", EARLIEST),
        ending=_offsets(told, "endingOffsets", LATEST),
        starting_us=_time(told, "startingTimestamp"),
        ending_us=_time(told, "endingTimestamp"),
        offsets_per_trigger_max=_number(told, "maxOffsetsPerTrigger", 1),
        partitions_min=_number(told, "minPartitions", 1) or 1,
        cores=cores,
        fail_on_data_loss=_choice(told, "failOnDataLoss", ("true", "false")) == "true",
        transaction=_transaction(told),
        credentials={
            name: told[f"store.{name}"] for name in CREDENTIALS if f"store.{name}" in told
        },
    )


def _is_sparks(name: str) -> bool:
    return name.lower() in _SPARKS_OWN


def _known(name: str) -> str:
    known = _FOLDED.get(name.lower())
    if known is None:
        raise OptionInvalid(f"there is no option {name!r}; known: {', '.join(KNOWN)}")
    return known


def _choice(told: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """The first choice when it is not told."""
    value = told.get(name, choices[0]).lower()
    if value not in choices:
        raise OptionInvalid(f"option {name} must be {' or '.join(choices)}, not {value!r}")
    return value


def _number(told: Mapping[str, str], name: str, least: int) -> int | None:
    text = told.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise OptionInvalid(f"option {name} must be a whole number from {least} on, not {text!r}")
    return int(text)


def _time(told: Mapping[str, str], name: str) -> int | None:
    """Microseconds since 1970 of a time in milliseconds, or in ISO 8601 with a zone."""
    text = told.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdecimal():
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionInvalid(
            f"option {name} must be milliseconds since 1970, or such as 2026-11-16T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise OptionInvalid(f"option {name}: {text!r} has no time zone; put Z or +02:00 behind it")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _offsets(told: Mapping[str, str], name: str, default: int) -> Offsets:
    text = told.get(name)
    if text is None:
        return default
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        found = json.loads(text)
        if isinstance(found, dict) and len(found) == 1:
            (inner,) = found.values()
            # As Kafka's source has it: by topic, then by partition.
            found = inner if isinstance(inner, dict) else found
        return {int(partition): _offset(offset) for partition, offset in found.items()}
    except (ValueError, AttributeError, TypeError):
        raise OptionInvalid(
            f"option {name} must be earliest, latest, an offset, or offsets by partition such as "
            f'{{"0": 17, "1": -2}}, not {text[:200]!r}'
        ) from None


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError(value)
    return value


def _transaction(told: Mapping[str, str]) -> tuple[str, int] | None:
    version = _number(told, "txnVersion", 0)
    app = told.get("txnAppId")
    if (app is None) != (version is None):
        raise OptionInvalid("options txnAppId and txnVersion go together")
    if app is not None and app.startswith(ONCE):
        raise OptionInvalid(f"option txnAppId must not begin with {ONCE!r}: it would be forgotten")
    return None if app is None or version is None else (app, version)
