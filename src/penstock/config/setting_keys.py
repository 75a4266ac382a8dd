"""The table of settings by full key, such as `storage.wal.dir`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, cast

from penstock.config.rules import Setting
from penstock.config.settings import Config

CLOUD: Final = "storage.cloud"
STORES: Final = "storage.stores"
_STORE: Final = re.compile(r"storage\.stores\.([a-z][a-z0-9_-]*)(?=\.|$)")


def _flatten(kind: Any, prefix: str = "") -> Iterator[Setting]:
    for item in fields(kind):
        if item.metadata:
            yield Setting(prefix + item.name, cast(type, item.type), item.default, **item.metadata)
        elif prefix + item.name != STORES:
            yield from _flatten(item.type, f"{prefix}{item.name}.")


STRUCTURED: Final = frozenset(["channels.seed"])
"""Settings whose value is a YAML document: nested in a file, text in other layers."""

SETTINGS: Final = {facts.key: facts for facts in _flatten(Config)}
"""All settings by full key in order of declaration, without those of named stores."""


def store_name(key: str) -> str | None:
    """The named store that a key belongs to; None for other keys."""
    match = _STORE.match(key)
    return None if match is None else match[1]


def pattern(key: str) -> str:
    """The key in `SETTINGS` with the facts of this key: stores share those of `storage.cloud`."""
    return _STORE.sub(CLOUD, key)


def store_settings(name: str) -> dict[str, Setting]:
    """The settings of a named store by full key."""
    keys = {key: f"{STORES}.{name}{key.removeprefix(CLOUD)}" for key in SETTINGS}
    return {
        keys[key]: facts._replace(key=keys[key])
        for key, facts in SETTINGS.items()
        if key.startswith(f"{CLOUD}.")
    }


def all_settings(config: Config) -> dict[str, Setting]:
    """All settings, including those of the named stores of this configuration."""
    stores = [store_settings(name) for name in config.storage.stores]
    return {key: facts for settings in (SETTINGS, *stores) for key, facts in settings.items()}


def read_value(config: Config, key: str) -> object:
    """The value of the setting with this full key."""
    value: Any = config
    for part in key.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return cast(object, value)


def secrets(config: Config) -> list[str]:
    """The values of all secrets that are set, so that logs and output can hide them."""
    settings = all_settings(config)
    values = (read_value(config, key) for key, facts in settings.items() if facts.secret)
    texts = (part for value in values for part in (value if type(value) is tuple else (value,)))
    return [str(text) for text in texts if text]
