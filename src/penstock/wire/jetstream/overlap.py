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


def subset(one: str, other: str) -> bool:
    """Whether every subject that the first filter matches is matched by the second, too."""
    inner, outer = one.split("."), other.split(".")
    for position, part in enumerate(outer):
        if part == ">":
            return len(inner) > position
        if position >= len(inner) or inner[position] == ">":
            return False
        if part not in ("*", inner[position]):
            return False
    return len(inner) == len(outer)


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
