"""Subjects, subject filters and subject mappings.

A subject is a sequence of tokens between dots. In a filter, `*` matches one token and a final `>`
one or more. A wildcard is a whole token: `a*` is a literal, as in NATS. Subjects and filters are
bytes. A NATS client may publish to a subject that has wildcard tokens; streams store it literally.
So create the filter of a stored subject with `Filter.exactly`, never with `Filter.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.model.errors import NameInvalid
from penstock.model.limits import SUBJECT_BYTES_MAX

_CHARACTER: Final = rb"[^.\x00-\x20\x7f]"
_TOKEN: Final = rb"(?![*>](?:\.|\Z))" + _CHARACTER + rb"+"
_FILTER_TOKEN: Final = rb"(?!>\.)" + _CHARACTER + rb"+"
_SUBJECT: Final = re.compile(_TOKEN + rb"(?:\." + _TOKEN + rb")*")
_STORABLE: Final = re.compile(_CHARACTER + rb"+(?:\." + _CHARACTER + rb"+)*")
_FILTER: Final = re.compile(_FILTER_TOKEN + rb"(?:\." + _FILTER_TOKEN + rb")*")
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_RULE: Final = (
    f"1 to {SUBJECT_BYTES_MAX} bytes of tokens between dots without white space or control "
    "characters; '*' stands for one token, '>' only at the end"
)


def valid_subject(subject: bytes) -> bool:
    """Whether a message may carry this subject."""
    return len(subject) <= SUBJECT_BYTES_MAX and _SUBJECT.fullmatch(subject) is not None


def storable_subject(subject: bytes) -> bool:
    """Whether a stream stores what a NATS client publishes to this subject, wildcards included."""
    return len(subject) <= SUBJECT_BYTES_MAX and _STORABLE.fullmatch(subject) is not None


def valid_filter(text: bytes) -> bool:
    """Whether `Filter.parse` accepts this text."""
    return len(text) <= SUBJECT_BYTES_MAX and _FILTER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Filter:
    """A set of subjects."""

    text: bytes
    literal: bool
    """Only the subject `text` matches, even if it contains wildcards."""
    everything: bool = field(compare=False)
    """Every subject matches."""
    prefix: bytes = field(compare=False)
    """Prefix of every matching subject: the tokens before the first wildcard, with their dot."""
    pattern: str = field(compare=False)
    """A regular expression over the bytes of a subject, without anchors. Python's `re` and RE2
    agree on it: it is plain ASCII and escapes all but letters and digits."""
    _compiled: re.Pattern[bytes] | None = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: bytes) -> Filter:
        """The filter with this text; raises NameInvalid."""
        if not valid_filter(text):
            raise NameInvalid("subject filter", text.decode("utf-8", "backslashreplace"), _RULE)
        tokens = text.split(b".")
        wild = next((n for n, token in enumerate(tokens) if token in (b"*", b">")), None)
        pattern = r"\x2e".join(map(_token_pattern, tokens))
        if wild is None:
            return cls(text, True, False, text, pattern, None)
        prefix = b"".join(token + b"." for token in tokens[:wild])
        compiled = re.compile(pattern.encode(), re.DOTALL)
        return cls(text, False, text == b">", prefix, pattern, compiled)

    @classmethod
    def exactly(cls, subject: bytes) -> Filter:
        """A filter that matches this subject alone, even if it contains wildcards."""
        pattern = r"\x2e".join(map(_literal_pattern, subject.split(b".")))
        return cls(subject, True, False, subject, pattern, None)

    @classmethod
    def covering(cls, subject: bytes) -> Filter:
        """The filter of a published subject: its wildcards count if it is a valid filter."""
        return cls.parse(subject) if valid_filter(subject) else cls.exactly(subject)

    def matches(self, subject: bytes) -> bool:
        if self._compiled is None:
            return subject == self.text
        return self._compiled.fullmatch(subject) is not None

    def __str__(self) -> str:
        return self.text.decode("utf-8", "backslashreplace")


def _token_pattern(token: bytes) -> str:
    if token == b"*":
        return r"[^\x2e]+"
    if token == b">":
        return ".+"
    return _literal_pattern(token)


def _literal_pattern(token: bytes) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in token)


_NUMBERED: Final = re.compile(rb"\$(\d{1,3})|\{\{\s*[Ww]ildcard\(\s*(\d{1,3})\s*\)\s*\}\}")
_MAPPING_RULE: Final = (
    "tokens, `$n` or `{{wildcard(n)}}` for the n-th `*` of the source, and a final `>` only where "
    "the source has one"
)


@dataclass(frozen=True, slots=True)
class SubjectMapping:
    """Rewrites subjects that a filter matches, such as `orders.*` to `archive.{{wildcard(1)}}`.

    In the destination, `$1` and `{{wildcard(1)}}` stand for the token that the first `*` of the
    source matched, `*` for the token of the next unused `*`, and a final `>` for the tokens that
    `>` of the source matched.
    """

    source: Filter
    _tokens: tuple[bytes | int, ...]
    """Tokens of the destination: literal ones, or indexes of tokens of the source."""
    _tail_from: int | None
    """Index of the first token that the final `>` copies; None without it."""

    @classmethod
    def parse(cls, source: bytes, destination: bytes) -> SubjectMapping:
        """The mapping from a filter, or all subjects if it is empty; raises NameInvalid."""
        source_filter = Filter.parse(source or b">")
        source_tokens = source_filter.text.split(b".")
        stars = [index for index, token in enumerate(source_tokens) if token == b"*"]
        tail = len(source_tokens) - 1 if source_tokens[-1] == b">" else None
        parts = destination.split(b".")
        copies = parts[-1] == b">"
        if copies:
            parts.pop()
        if copies and tail is None:
            raise _mapping_invalid(destination)
        unused = iter(stars)
        tokens = tuple(_mapped_token(part, stars, unused, destination) for part in parts)
        if b"" in tokens or not (tokens or copies):
            raise _mapping_invalid(destination)
        return cls(source_filter, tokens, tail if copies else None)

    @property
    def reach(self) -> bytes:
        """A filter that every mapped subject matches."""
        tokens = [b"*" if isinstance(token, int) else token for token in self._tokens]
        return b".".join([*tokens, b">"] if self._tail_from is not None else tokens)

    def map(self, subject: bytes) -> bytes | None:
        """The mapped subject; None when the source filter does not match."""
        if not self.source.matches(subject):
            return None
        tokens = subject.split(b".")
        mapped = [token if isinstance(token, bytes) else tokens[token] for token in self._tokens]
        if self._tail_from is not None:
            mapped += tokens[self._tail_from :]
        return b".".join(mapped)


def _mapped_token(
    part: bytes, stars: list[int], unused: Iterator[int], destination: bytes
) -> bytes | int:
    numbered = _NUMBERED.fullmatch(part)
    if numbered is not None:
        number = int(numbered[1] or numbered[2])
        if not 1 <= number <= len(stars):
            raise _mapping_invalid(destination)
        return stars[number - 1]
    if part == b"*":
        index = next(unused, None)
        if index is None:
            raise _mapping_invalid(destination)
        return index
    if b"{{" in part or part == b">" or (part[:1] == b"$" and part[1:].isdigit()):
        raise _mapping_invalid(destination)
    return part


def _mapping_invalid(destination: bytes) -> NameInvalid:
    return NameInvalid(
        "subject mapping", destination.decode("utf-8", "backslashreplace"), _MAPPING_RULE
    )
