"""Settings: their facts, and how a text becomes a checked value.

Every layer provides texts, or lists of texts in the case of a file. The setting decides whether `5`
is a number, not the layer.
"""

import re
from dataclasses import field
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.config.addresses import PORT_MAX, Address, parse_address, parse_addresses

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
DAY_SECONDS: Final = 86_400

SECRET_SHOWN: Final = "***"  # noqa: S105 - it stands in the place of a secret

Raw: TypeAlias = str | list[str] | None
"""A value before parsing; None stands for a structure that no setting accepts."""

Addresses: TypeAlias = tuple[Address, ...]

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9](_?[0-9])*")


class Setting(NamedTuple):
    """The facts of one setting."""

    key: str
    kind: type
    default: object
    meaning: str
    low: int
    high: int
    choices: tuple[str, ...]
    secret: bool

    @property
    def rule(self) -> str:
        """The rule for values, as the end of a sentence "must be ..."."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind is int:
            return f"a whole number from {self.low} to {self.high}"
        if self.kind is Address:
            return f"HOST:PORT with a port from 0 to {PORT_MAX}"
        if self.kind == Addresses:
            return f"HOST:PORT with a port from 0 to {PORT_MAX}, or a list of these"
        return "text" if self.kind is str else "a list of texts"

    def parse(self, raw: Raw) -> object:
        """Parse a value; raises ValueError if it breaks the rule."""
        takes_list = self.kind not in (str, int, Address)
        if raw is None or (isinstance(raw, list) and not takes_list):
            raise ValueError(raw)
        if self.kind == Addresses:
            return parse_addresses(raw if isinstance(raw, list) else [raw])
        if isinstance(raw, list):
            return tuple(raw)
        if takes_list:
            return tuple(part.strip() for part in raw.split(",") if part.strip())
        if self.kind is int:
            return self._number(raw)
        if self.kind is Address:
            return parse_address(raw)
        return self._text(raw)

    def show(self, value: object) -> str:
        """The value as text, or `***` for a secret."""
        if self.secret and value:
            return SECRET_SHOWN
        return ",".join(map(str, value)) if type(value) is tuple else str(value)

    def _number(self, raw: str) -> int:
        if not _WHOLE_NUMBER.fullmatch(raw) or not self.low <= int(raw) <= self.high:
            raise ValueError(raw)
        return int(raw)

    def _text(self, raw: str) -> str:
        if self.choices and raw not in self.choices:
            raise ValueError(raw)
        return raw


def setting(
    default: object,
    meaning: str,
    low: int = 0,
    high: int = 0,
    *,
    choices: str = "",
    secret: bool = False,
) -> Any:
    """Declare one setting; the value of a secret is neither in `repr` nor shown elsewhere."""
    facts = {
        "meaning": meaning,
        "low": low,
        "high": high,
        "choices": tuple(choices.split()),
        "secret": secret,
    }
    return field(default=default, repr=not secret, metadata=facts)


def section(kind: type) -> Any:
    """Declare a nested section."""
    return field(default_factory=kind)
