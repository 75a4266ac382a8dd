"""Errors of the Spark package, in addition to those of the client and of Spark.

SparkError
├── SparkUnavailable   Java or PySpark is missing
├── OptionInvalid      an option is missing, unknown or malformed
├── ColumnsInvalid     columns do not match the topic
├── DataLost           requested offsets were deleted
├── DataUnread         committed offsets could not be read
└── WriteRefused       the topic does not allow this write
"""

from __future__ import annotations

from penstock.model.errors import PenstockError


class SparkError(PenstockError):
    """An error of reading or writing topics with Spark."""

    code = "spark_error"


class SparkUnavailable(SparkError):
    """Spark cannot run here."""

    code = "spark_unavailable"


class OptionInvalid(SparkError):
    """An option is missing, unknown or malformed."""

    code = "spark_option_invalid"


class ColumnsInvalid(SparkError):
    """Columns do not match the topic."""

    code = "spark_columns_invalid"


class DataLost(SparkError):
    """Requested offsets were deleted, and `failOnDataLoss` is set."""

    code = "spark_data_lost"

    def __init__(self, topic: str, partition: int, first: int, earliest: int) -> None:
        super().__init__(
            f"topic {topic}, partition {partition}: offsets {first} to {earliest - 1} are gone; "
            "set failOnDataLoss to false to go on without them"
        )
        self.partition, self.first, self.earliest = partition, first, earliest


class DataUnread(SparkError):
    """Committed offsets could not be read."""

    code = "spark_data_unread"


class WriteRefused(SparkError):
    """The topic does not allow this write."""

    code = "spark_write_refused"
