"""Whether two subject filters can match the same subject."""

from __future__ import annotations

from collections.abc import Iterable


def collide(first: str, second: str) -> bool:
    """Whether some subject matches both filters."""
    tokens, others = first.split("."), second.split(".")
    for pair in zip(tokens, others, strict=False):
        if ">" in pair:
            return True
        if pair[0] != pair[1] and "*" not in pair:
            return False
    return len(tokens) == len(others)


def subset(narrow: str, wide: str) -> bool:
    """Whether the filter `wide` matches every subject that `narrow` matches."""
    inner, outer = narrow.split("."), wide.split(".")
    for position, part in enumerate(outer):
        if part == ">":
            return len(inner) > position
        if position >= len(inner) or inner[position] == ">":
            return False
        if part not in ("*", inner[position]):
            return False
    return len(inner) == len(outer)


def overlap(subjects: Iterable[str], others: Iterable[str]) -> bool:
    """Whether some subject matches a filter of each side."""
    filters = list(others)
    return any(collide(subject, other) for subject in subjects for other in filters)


def first_collision(subjects: Iterable[str]) -> tuple[str, str] | None:
    """The first two filters that can match the same subject; None if there are none."""
    seen: list[str] = []
    for subject in subjects:
        for earlier in seen:
            if collide(earlier, subject):
                return earlier, subject
        seen.append(subject)
    return None
