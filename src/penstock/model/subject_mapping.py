"""Subjects rewritten: `orders.*.>` to `archive.{{wildcard(1)}}.>`.

In the destination `$1` and `{{wildcard(1)}}` stand for what the first `*` of the source matched, a
`*` for the next one that is not used yet, and a final `>` for what the source's `>` matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import NameInvalid
from penstock.model.subjects import Filter

_NUMBERED: Final = re.compile(rb"\$(\d{1,3})|\{\{\s*[Ww]ildcard\(\s*(\d{1,3})\s*\)\s*\}\}")
_RULE: Final = (
    "tokens, `$n` or `{{wildcard(n)}}` for the n-th `*` of the source, and a final `>` only where "
    "the source has one"
)


@dataclass(frozen=True, slots=True)
class SubjectMapping:
    """From subjects that a filter matches to others."""

    source: Filter
    _tokens: tuple[bytes | int, ...]
    """Of the destination: as they are, or the number of the token that stands there."""
    _tail_from: int | None
    """From which token on the rest is copied."""

    @classmethod
    def parse(cls, source: bytes, destination: bytes) -> SubjectMapping:
        """Raises NameInvalid."""
        chosen = Filter.parse(source or b">")
        wanted = chosen.text.split(b".")
        stars = [place for place, token in enumerate(wanted) if token == b"*"]
        tail = len(wanted) - 1 if wanted[-1] == b">" else None
        parts = destination.split(b".")
        copies = parts[-1] == b">"
        if copies:
            parts.pop()
        if copies and tail is None:
            raise _invalid(destination)
        unused = iter(stars)
        tokens = tuple(_token(part, stars, unused, destination) for part in parts)
        if b"" in tokens or not (tokens or copies):
            raise _invalid(destination)
        return cls(chosen, tokens, tail if copies else None)

    @property
    def reach(self) -> bytes:
        """A filter that every mapped subject matches."""
        tokens = [b"*" if isinstance(token, int) else token for token in self._tokens]
        return b".".join([*tokens, b">"] if self._tail_from is not None else tokens)

    def map(self, subject: bytes) -> bytes | None:
        """The other subject; None when the source does not match."""
        if not self.source.matches(subject):
            return None
        given = subject.split(b".")
        made = [token if isinstance(token, bytes) else given[token] for token in self._tokens]
        if self._tail_from is not None:
            made += given[self._tail_from :]
        return b".".join(made)


def _token(part: bytes, stars: list[int], unused: Iterator[int], destination: bytes) -> bytes | int:
    numbered = _NUMBERED.fullmatch(part)
    if numbered is not None:
        number = int(numbered[1] or numbered[2])
        if not 1 <= number <= len(stars):
            raise _invalid(destination)
        return stars[number - 1]
    if part == b"*":
        place = next(unused, None)
        if place is None:
            raise _invalid(destination)
        return place
    if b"{{" in part or part == b">" or part.startswith(b"$"):
        raise _invalid(destination)
    return part


def _invalid(destination: bytes) -> NameInvalid:
    return NameInvalid("subject mapping", destination.decode("utf-8", "backslashreplace"), _RULE)
