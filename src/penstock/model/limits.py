"""Limits that belong to the model itself; an error that refuses something names the limit."""

from typing import Final

TENANT_CHARACTERS_MAX: Final = 63
TOPIC_CHARACTERS_MAX: Final = 255
PARTITION_ID_MAX: Final = (1 << 31) - 1
OFFSET_MAX: Final = (1 << 63) - 1
SUBJECT_BYTES_MAX: Final = 4096
RUN_MESSAGES_MAX: Final = 1 << 20
RUN_BYTES_MAX: Final = 128 << 20
MESSAGES_PER_BYTE_MAX: Final = 8
"""No run holds more: bytes on disk bound the offsets that were given for them."""
