"""Limits of the data model. An error that refuses a value names the limit."""

from typing import Final

TENANT_CHARACTERS_MAX: Final = 63
TOPIC_CHARACTERS_MAX: Final = 255
PARTITION_ID_MAX: Final = (1 << 31) - 1
PARTITION_DIGITS_MAX: Final = len(str(PARTITION_ID_MAX))
OFFSET_MAX: Final = (1 << 63) - 1
RETENTION_SECONDS_MAX: Final = 100 * 365 * 86_400
"""A century, so that every time stays within the range of 64-bit microseconds."""
SUBJECT_BYTES_MAX: Final = 4096
RUN_MESSAGES_MAX: Final = 1 << 20
RUN_BYTES_MAX: Final = 128 << 20
MESSAGES_PER_BYTE_MAX: Final = 8
"""Limits the messages of a run by its bytes, so that bytes on disk bound the offsets in use."""
