import re

import pytest

from penstock.host.entropy import random_u32, unique_name


def test_random_numbers_fit_four_bytes_and_differ() -> None:
    numbers = {random_u32() for _ in range(100)}
    assert len(numbers) > 90
    assert all(1 <= number < 1 << 32 for number in numbers)


def test_random_u32_is_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", bytes)
    assert random_u32() == 1


def test_unique_names_are_plain_and_differ() -> None:
    names = {unique_name() for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(r"[0-9a-f]{32}", name) for name in names)
