"""Subjects and subject filters: tokens between dots, `*` for one token, `>` for the rest.

A wildcard is a whole token: `a*` is a literal, as in NATS. Subjects are bytes, and so are filters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from penstock.model.errors import NameInvalid
from penstock.model.limits import SUBJECT_BYTES_MAX

_CHARACTER: Final = rb"[^.\x00-\x20\x7f]"
_TOKEN: Final = rb"(?![*>](?:\.|\Z))" + _CHARACTER + rb"+"
_FILTER_TOKEN: Final = rb"(?!>\.)" + _CHARACTER + rb"+"
_SUBJECT: Final = re.compile(_TOKEN + rb"(?:\." + _TOKEN + rb")*")
_FILTER: Final = re.compile(_FILTER_TOKEN + rb"(?:\." + _FILTER_TOKEN + rb")*")
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_RULE: Final = (
    f"1 to {SUBJECT_BYTES_MAX} bytes of tokens between dots without white space or control "
    "characters; '*' stands for one token, '>' only at the end"
)


def valid_subject(subject: bytes) -> bool:
    """Whether a message may carry this subject."""
    return len(subject) <= SUBJECT_BYTES_MAX and _SUBJECT.fullmatch(subject) is not None


def valid_filter(text: bytes) -> bool:
    """Whether `Filter.parse` takes it."""
    return len(text) <= SUBJECT_BYTES_MAX and _FILTER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which subjects are meant; equal when the text is."""

    text: bytes
    literal: bool = field(compare=False)
    """Only the subject `text` matches."""
    everything: bool = field(compare=False)
    """Every subject matches."""
    prefix: bytes = field(compare=False)
    """What a subject must start with: the tokens before the first wildcard, with their dot."""
    pattern: str = field(compare=False)
    """A regular expression over the bytes of a subject, without anchors. Python's `re` and RE2
    agree on it: it is plain ASCII and escapes all but letters and digits."""
    _compiled: re.Pattern[bytes] | None = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: bytes) -> Filter:
        """Raises NameInvalid."""
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
    return "".join(chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in token)
