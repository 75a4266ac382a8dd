"""Parser of nats-server's configuration format, and the settings in it that Penstock supports.

The format is a relaxed JSON: `key: value`, `key = value` or `key value`, comments from `#` or `//`
to the end of the line, optional commas and quotes, numbers with a unit (`64k`, `1MB`). An unknown
key is an error, so that no setting is ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.config import AddressInvalid, split_address
from penstock.model.errors import ConfigError
from penstock.model.times import SECOND_NS
from penstock.wire.jetstream.times import parse_duration

DEPTH_MAX: Final = 16
TOKEN: Final = re.compile(
    r"""
    (?P<skip> [ \t\r,;]+ | \#[^\n]* | //[^\n]* )
    | (?P<line> \n )
    | (?P<mark> [{}\[\]:=] )
    | "(?P<double> (?: [^"\\\n] | \\. )* )"
    | '(?P<single> [^'\n]* )'
    | (?P<word> [^\s,;{}\[\]:="'\#]+ (?: : (?=[^\s{\[]) [^\s,;{}\[\]"'\#]* )* )
    """,
    re.VERBOSE,
)
NUMBER: Final = re.compile(r"(-?[0-9]+)([kmgt]i?b?)?", re.IGNORECASE)
UNITS: Final = {"k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
BINARY_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
WORDS: Final = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Settings of the command line and the file; None means that a setting is absent."""

    host: str | None = None
    """A host, or several separated by commas."""
    port: int | None = None
    monitor_host: str | None = None
    monitor_port: int | None = None
    server_name: str | None = None
    jetstream: bool | None = None
    store_dir: str | None = None
    token: str | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    max_payload: int | None = None
    max_connections: int | None = None
    max_subscriptions: int | None = None
    max_pending: int | None = None
    ping_seconds: float | None = None
    ping_max: int | None = None

    def over(self, defaults: ServerOptions) -> ServerOptions:
        """These settings; absent ones are taken from `defaults`."""
        values = {name: getattr(self, name) for name in self.__slots__}
        present = {name: value for name, value in values.items() if value not in (None, {})}
        return replace(defaults, **present)


class Token(NamedTuple):
    """A word or a punctuation mark, and its line."""

    kind: str
    text: str
    line: int


def read_options(path: Path) -> ServerOptions:
    """Read a file; raises ConfigError, which names the file and the line or the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    return options_of(parse(text, str(path)), str(path))


def parse(text: str, name: str) -> dict[str, Any]:
    """Parse a document; raises ConfigError."""
    return _Parser(name, _tokens(text, name)).document()


def options_of(document: Mapping[str, Any], name: str) -> ServerOptions:
    """The settings of a document; raises ConfigError for an unknown key or value."""
    return _DocumentReader(name).options(document)


def seconds(value: Any) -> float | None:
    """Seconds from a number or from a text such as `1m30s`; None if it is neither."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    try:
        return parse_duration(str(value)) / SECOND_NS
    except ValueError:
        return None


def _tokens(text: str, name: str) -> Iterator[Token]:
    position, line = 0, 1
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ConfigError(f"{name}:{line}: Parse error: unexpected {text[position]!r}")
        position = match.end()
        kind = str(match.lastgroup)
        if kind == "line":
            line += 1
        elif kind != "skip":
            yield Token(kind, match[kind], line)
    yield Token("end", "", line)


class _Parser:
    """A recursive descent parser; `_token` is the next token."""

    def __init__(self, name: str, tokens: Iterator[Token]) -> None:
        self._name, self._tokens = name, tokens
        self._token = next(tokens)

    def document(self) -> dict[str, Any]:
        braced = self._token.kind == "mark" and self._token.text == "{"
        if braced:
            self._advance()
        pairs = self._pairs("}" if braced else "", 0)
        if self._token.kind != "end":
            raise self._unexpected()
        return pairs

    def _pairs(self, closing: str, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        while not self._closed(closing):
            if self._token.kind == "mark":
                raise self._unexpected()
            key = self._advance().text
            if self._token.kind == "mark" and self._token.text in ":=":
                self._advance()
            pairs[key] = self._value(depth + 1)
        return pairs

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ConfigError(f"{self._name}:{self._token.line}: more than {DEPTH_MAX} levels deep")
        token = self._advance()
        if token.kind == "mark" and token.text == "{":
            return self._pairs("}", depth)
        if token.kind == "mark" and token.text == "[":
            items = []
            while not self._closed("]"):
                items.append(self._value(depth + 1))
            return items
        if token.kind in ("mark", "end"):
            raise self._unexpected(token)
        if token.kind == "double":
            return re.sub(r"\\(.)", r"\1", token.text)
        return token.text if token.kind == "single" else _word(token.text)

    def _closed(self, closing: str) -> bool:
        if self._token.kind == "end" and not closing:
            return True
        if closing and self._token.kind == "mark" and self._token.text == closing:
            self._advance()
            return True
        if self._token.kind == "end":
            raise self._unexpected()
        return False

    def _advance(self) -> Token:
        token = self._token
        if token.kind != "end":
            self._token = next(self._tokens)
        return token

    def _unexpected(self, token: Token | None = None) -> ConfigError:
        token = token or self._token
        what = "end of the file" if token.kind == "end" else repr(token.text)
        return ConfigError(f"{self._name}:{token.line}: Parse error: unexpected {what}")


def _word(text: str) -> Any:
    number = NUMBER.fullmatch(text)
    if number is None:
        return WORDS.get(text.lower(), text)
    unit = (number[2] or "").lower()
    factors = BINARY_UNITS if unit.endswith("b") else UNITS
    return int(number[1]) * (factors[unit[0]] if unit else 1)


class _DocumentReader:
    """Converts a parsed document to settings."""

    def __init__(self, name: str) -> None:
        self._name = name

    def options(self, document: Mapping[str, Any]) -> ServerOptions:
        settings: dict[str, Any] = {}
        for key, value in document.items():
            settings.update(self._setting(key.lower(), key, value))
        return ServerOptions(**settings)

    def _setting(self, key: str, written: str, value: Any) -> dict[str, Any]:
        if key in ("listen", "http", "monitor"):
            host, port = self._address(written, value)
            prefix = "" if key == "listen" else "monitor_"
            return {f"{prefix}host": host, f"{prefix}port": port}
        if key in ("host", "net", "server_name"):
            name = "server_name" if key == "server_name" else "host"
            return {name: self._typed(written, value, str)}
        if key in INTEGERS:
            return {INTEGERS[key]: self._typed(written, value, int)}
        if key == "ping_interval":
            return {"ping_seconds": self._seconds(written, value)}
        if key == "jetstream":
            return self._jetstream(value)
        if key == "authorization":
            return self._authorization(self._typed(written, value, dict))
        if key in ("debug", "trace", "logtime"):
            return {}
        raise self._unknown(written)

    def _jetstream(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            enabled = {"enabled": True, "enable": True, "disabled": False}.get(value, value)
            return {"jetstream": self._typed("jetstream", enabled, bool)}
        settings: dict[str, Any] = {"jetstream": True}
        for key, item in value.items():
            if key in ("store_dir", "storedir", "store"):
                settings["store_dir"] = self._typed(key, item, str)
            elif key == "enabled":
                settings["jetstream"] = self._typed(key, item, bool)
            else:
                raise self._unknown(f"jetstream.{key}")
        return settings

    def _authorization(self, block: Mapping[str, Any]) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        for key, value in block.items():
            if key == "token":
                settings["token"] = str(value)
            elif key == "users":
                settings["users"] = dict(map(self._user, self._typed(key, value, list)))
            elif key not in ("user", "username", "pass", "password"):
                raise self._unknown(f"authorization.{key}")
        if "user" in block or "username" in block:
            user = {key: value for key, value in block.items() if key not in ("token", "users")}
            settings["users"] = {**settings.get("users", {}), **dict([self._user(user)])}
        return settings

    def _user(self, block: Any) -> tuple[str, str]:
        settings = dict(self._typed("authorization.users", block, dict))
        user = settings.pop("user", None) or settings.pop("username", None)
        password = settings.pop("password", None) or settings.pop("pass", None)
        if settings:
            raise self._unknown(f"authorization.users.{next(iter(settings))}")
        if user is None or password is None:
            raise ConfigError(f"{self._name}: a user needs `user` and `password`")
        return str(user), str(password)

    def _address(self, key: str, value: Any) -> tuple[str | None, int]:
        if isinstance(value, int) and not isinstance(value, bool):
            return None, value
        text = self._typed(key, value, str)
        try:
            host, port = (None, text[1:]) if text.startswith(":") else split_address(text)
        except AddressInvalid as error:
            raise ConfigError(f"{self._name}: {key} is HOST:PORT or a port: {error}") from None
        if not re.fullmatch(r"-?[0-9]{1,5}", port):
            raise ConfigError(f"{self._name}: {key} is HOST:PORT or a port, not {value!r}")
        return host, int(port)

    def _seconds(self, key: str, value: Any) -> float:
        duration = seconds(value)
        if duration is None or duration <= 0:
            raise ConfigError(f"{self._name}: {key} is a duration such as 30s, not {value!r}")
        return duration

    def _typed(self, key: str, value: Any, kind: type) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            names = {str: "text", int: "a number", bool: "true or false", dict: "a block"}
            what = names.get(kind, "a list")
            raise ConfigError(f"{self._name}: {key} is {what}, not {value!r}")
        return value

    def _unknown(self, key: str) -> ConfigError:
        return ConfigError(f"{self._name}: Penstock does not know the setting {key}; remove it")


INTEGERS: Final = {
    "port": "port",
    "http_port": "monitor_port",
    "monitor_port": "monitor_port",
    "max_payload": "max_payload",
    "max_connections": "max_connections",
    "max_conn": "max_connections",
    "max_subscriptions": "max_subscriptions",
    "max_subs": "max_subscriptions",
    "max_pending": "max_pending",
    "ping_max": "ping_max",
    "max_pings_out": "ping_max",
}
