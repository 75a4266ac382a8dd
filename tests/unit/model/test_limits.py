from penstock.formats.frames import BODY_BYTES_MAX
from penstock.model.limits import (
    OFFSET_MAX,
    PARTITION_ID_MAX,
    RUN_BYTES_MAX,
    RUN_MESSAGES_MAX,
    SUBJECT_BYTES_MAX,
)


def test_the_largest_run_fits_the_largest_body() -> None:
    timestamps = 8 * RUN_MESSAGES_MAX
    three_columns_of_offsets = 3 * 4 * (RUN_MESSAGES_MAX + 1)
    assert RUN_BYTES_MAX + timestamps + three_columns_of_offsets <= BODY_BYTES_MAX


def test_the_bytes_of_the_largest_run_can_be_counted_by_int32_offsets() -> None:
    assert RUN_BYTES_MAX < 1 << 31


def test_offsets_and_partitions_fit_their_fields() -> None:
    assert OFFSET_MAX == (1 << 63) - 1
    assert PARTITION_ID_MAX == (1 << 31) - 1
    assert SUBJECT_BYTES_MAX < RUN_BYTES_MAX
