"""What can go wrong beside the broker's and Spark's own errors.

SparkError
├── SparkUnavailable   no Java or no PySpark
├── OptionInvalid      an option is missing, unknown or malformed
├── ColumnsInvalid     columns do not fit the topic
├── DataLost           offsets that were asked for are gone
├── DataUnread         offsets that should be there could not be read
└── WriteRefused       the topic cannot be written like that
"""

from __future__ import annotations

from penstock.model.errors import PenstockError


class SparkError(PenstockError):
    """Something about reading or writing topics with Spark."""


class SparkUnavailable(SparkError):
    """Spark cannot run here."""


class OptionInvalid(SparkError):
    """An option is missing, unknown or malformed."""


class ColumnsInvalid(SparkError):
    """Columns do not fit the topic."""


class DataLost(SparkError):
    """Offsets that were asked for are gone, and `failOnDataLoss` is on."""

    def __init__(self, topic: str, partition: int, asked: int, earliest: int) -> None:
        super().__init__(
            f"topic {topic}, partition {partition}: offsets {asked} to {earliest - 1} are gone; "
            "set failOnDataLoss to false to go on without them"
        )
        self.partition, self.asked, self.earliest = partition, asked, earliest


class DataUnread(SparkError):
    """Offsets that are committed could not be read."""


class WriteRefused(SparkError):
    """The topic cannot be written like that."""
