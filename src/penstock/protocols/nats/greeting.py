"""The start of a connection: INFO of the server and the options of CONNECT."""

from __future__ import annotations

import hmac
from typing import Any, Final

import msgspec

PROTOCOL: Final = 1


class Options(msgspec.Struct, frozen=True):
    """The options of CONNECT that the server uses; unknown ones are ignored."""

    verbose: bool = True
    pedantic: bool = True
    headers: bool = False
    no_responders: bool = False
    echo: bool = True
    protocol: int = 0
    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    auth_token: str = ""
    name: str = ""
    lang: str = ""
    version: str = ""


DEFAULT_OPTIONS: Final = Options()


def connect_options(text: bytes, before: Options = DEFAULT_OPTIONS) -> Options:
    """The options in effect after a CONNECT: its own on top of the earlier ones.

    Raises ValueError.
    """
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except RecursionError:
        raise ValueError("the options are nested too deep") from None
    present = {name: value for name, value in fields.items() if value is not None}
    return msgspec.convert(msgspec.to_builtins(before) | present, Options)


class Info(msgspec.Struct, omit_defaults=True):
    """The fields of INFO, in the order in which they are sent."""

    server_id: str
    server_name: str
    version: str
    proto: int
    git_commit: str
    go: str
    host: str
    port: int
    headers: bool
    auth_required: bool = False
    max_payload: int = 0
    jetstream: bool = False
    client_id: int = 0
    client_ip: str = ""
    ldm: bool = False
    connect_info: bool = False
    remote_account: str = ""
    api_lvl: int = 0


def encode_info(info: Info) -> bytes:
    return b"INFO " + msgspec.json.encode(info) + b" \r\n"


class Credentials:
    """Who may connect: everybody, holders of a token, or users with passwords."""

    def __init__(self, token: str = "", users: dict[str, str] | None = None) -> None:
        self._token, self._users = token, users or {}

    @property
    def required(self) -> bool:
        return bool(self._token or self._users)

    def allow(self, options: Options) -> bool:
        if not self.required:
            return True
        token = self._token and _same(options.auth_token, self._token)
        password = self._users.get(options.user)
        return bool(token or (password is not None and _same(options.password, password)))


def _same(secret: str, expected: str) -> bool:
    return hmac.compare_digest(secret.encode(), expected.encode())
