"""Options of the data source; names are those of Spark's Kafka source where the meaning is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.client import broker_url
from penstock.formats.bodies import ONCE
from penstock.model import names
from penstock.model.names import TopicName
from penstock.model.times import parse_time_us
from penstock.objects import CREDENTIALS
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
"""Options that Spark itself adds."""

Offsets = int | dict[int, int]
"""One offset for all partitions, or one by partition; EARLIEST and LATEST are negative."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options, parsed and checked."""

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
    """Number of tasks that Spark runs at a time."""
    fail_on_data_loss: bool = True
    transaction: tuple[str, int] | None = None
    credentials: Mapping[str, str] = field(default_factory=dict)


def read(texts: Mapping[str, str], broker: str | None = None, cores: int = 1) -> SourceOptions:
    """Parse options as Spark passes them, with names in any case; raises OptionInvalid.

    `broker` is the default of the option `broker`.
    """
    texts = {_known(name): value for name, value in texts.items() if not _is_sparks(name)}
    if "topic" not in texts:
        raise OptionInvalid("option topic is missing")
    for kind in ("starting", "ending"):
        if f"{kind}Offsets" in texts and f"{kind}Timestamp" in texts:
            raise OptionInvalid(f"use {kind}Offsets or {kind}Timestamp, not both")
    return SourceOptions(
        topic=names.topic(
            texts["topic"], names.namespace(texts.get("namespace", str(names.DEFAULT_NAMESPACE)))
        ),
        broker=broker_url(texts.get("broker") or broker),
        through_broker=_choice(texts, "through", ("bucket", "broker")) == "broker",
        starting=_offsets(texts, "startingOffsets", EARLIEST),
        ending=_offsets(texts, "endingOffsets", LATEST),
        starting_us=_time(texts, "startingTimestamp"),
        ending_us=_time(texts, "endingTimestamp"),
        offsets_per_trigger_max=_number(texts, "maxOffsetsPerTrigger", 1),
        partitions_min=_number(texts, "minPartitions", 1) or 1,
        cores=cores,
        fail_on_data_loss=_choice(texts, "failOnDataLoss", ("true", "false")) == "true",
        transaction=_transaction(texts),
        credentials={
            name: texts[f"store.{name}"] for name in CREDENTIALS if f"store.{name}" in texts
        },
    )


def _is_sparks(name: str) -> bool:
    return name.lower() in _SPARKS_OWN


def _known(name: str) -> str:
    known = _FOLDED.get(name.lower())
    if known is None:
        raise OptionInvalid(f"unknown option {name!r}; known: {', '.join(KNOWN)}")
    return known


def _choice(texts: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """The value of an option; its default is the first choice."""
    value = texts.get(name, choices[0]).lower()
    if value not in choices:
        raise OptionInvalid(f"option {name} must be {' or '.join(choices)}, not {value!r}")
    return value


def _number(texts: Mapping[str, str], name: str, least: int) -> int | None:
    text = texts.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise OptionInvalid(f"option {name} must be a whole number from {least} on, not {text!r}")
    return int(text)


def _time(texts: Mapping[str, str], name: str) -> int | None:
    """Microseconds since 1970 of a time in milliseconds, or in ISO 8601 with a zone."""
    text = texts.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdecimal():
        return int(text) * 1000
    try:
        return parse_time_us(text)
    except ValueError as error:
        raise OptionInvalid(
            f"option {name} must be milliseconds since 1970, or a time with a time zone such as "
            f"2026-11-16T08:00:00Z: {error}"
        ) from None


def _offsets(texts: Mapping[str, str], name: str, default: int) -> Offsets:
    text = texts.get(name)
    if text is None:
        return default
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        offsets = json.loads(text)
        if isinstance(offsets, dict) and len(offsets) == 1:
            (inner,) = offsets.values()
            # Kafka's source nests offsets by topic, then by partition.
            offsets = inner if isinstance(inner, dict) else offsets
        return {int(partition): _offset(offset) for partition, offset in offsets.items()}
    except (ValueError, AttributeError, TypeError):
        raise OptionInvalid(
            f"option {name} must be earliest, latest, an offset, or offsets by partition such as "
            f'{{"0": 17, "1": -2}}, not {text[:200]!r}'
        ) from None


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError(value)
    return value


def _transaction(texts: Mapping[str, str]) -> tuple[str, int] | None:
    version = _number(texts, "txnVersion", 0)
    app = texts.get("txnAppId")
    if (app is None) != (version is None):
        raise OptionInvalid("options txnAppId and txnVersion need each other")
    if app is not None and app.startswith(ONCE):
        raise OptionInvalid(f"option txnAppId must not begin with {ONCE!r}: it would be forgotten")
    return None if app is None or version is None else (app, version)
