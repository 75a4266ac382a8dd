"""Whether two subject filters can match the same subject."""

from __future__ import annotations

from collections.abc import Iterable


def collide(one: str, other: str) -> bool:
    """Whether some subject matches both filters."""
    tokens, others = one.split("."), other.split(".")
    for first, second in zip(tokens, others, strict=False):
        if first == ">" or second == ">":
            return True
        if first != second and "*" not in (first, second):
            return False
    return len(tokens) == len(others)


def overlap(subjects: Iterable[str], others: Iterable[str]) -> bool:
    """Whether some subject matches a filter of both."""
    rest = list(others)
    return any(collide(subject, other) for subject in subjects for other in rest)


def first_collision(subjects: Iterable[str]) -> tuple[str, str] | None:
    """Two of the filters that can match the same subject."""
    seen: list[str] = []
    for subject in subjects:
        for earlier in seen:
            if collide(earlier, subject):
                return earlier, subject
        seen.append(subject)
    return None
