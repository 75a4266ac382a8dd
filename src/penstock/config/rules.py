"""What a setting is: its facts in one line, and the one place that turns text into a checked value.

Every layer gives text (or, in a file, a list of texts); whether `5` is a number is decided by the
setting, never by where it was written.
"""

import re
from dataclasses import field
from typing import Any, Final, NamedTuple, TypeAlias

SECRET_SHOWN: Final = "***"  # noqa: S105 - it stands in the place of a secret
PORT_MAX: Final = 65_535

Raw: TypeAlias = str | list[str] | None
"""A value as it was given; None stands for a shape that no setting takes."""

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9](_?[0-9])*")
_PORT: Final = re.compile(r"[0-9]{1,5}")


class Address(NamedTuple):
    """Where a door listens; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Setting(NamedTuple):
    """The facts of one setting, under its full key."""

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
        """What a value must be, to end the sentence "must be ..."."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind is int:
            return f"a whole number from {self.low} to {self.high}"
        if self.kind is Address:
            return f"HOST:PORT with a port from 0 to {PORT_MAX}"
        return "text" if self.kind is str else "a list of texts"

    def parse(self, raw: Raw) -> object:
        """The value that `raw` stands for; raises ValueError if it breaks the rule."""
        takes_list = self.kind not in (str, int, Address)
        if raw is None or (isinstance(raw, list) and not takes_list):
            raise ValueError(raw)
        if isinstance(raw, list):
            return tuple(raw)
        if takes_list:
            return tuple(part.strip() for part in raw.split(",") if part.strip())
        if self.kind is int:
            return self._number(raw)
        if self.kind is Address:
            return _address(raw)
        return self._text(raw)

    def show(self, value: object) -> str:
        """The value as people write it, unless it is a secret."""
        if self.secret and value:
            return SECRET_SHOWN
        return ",".join(value) if type(value) is tuple else str(value)

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
    """Declare one setting; a secret stays out of `repr` and of everything shown."""
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


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(text)
    if not host or not _PORT.fullmatch(port) or int(port) > PORT_MAX:
        raise ValueError(text)
    return Address(host, int(port))
