"""The object stores that namespaces may name: one client for every configuration.

`storage.cloud` is the store without a name; `storage.stores` has the others. A client is made when
somebody first needs it, and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.config.settings import Cloud
from penstock.formats.plan_api import StoreReply
from penstock.model.errors import ResourceUnknown
from penstock.objects.described import describe
from penstock.objects.factory import open_store
from penstock.objects.interface import ObjectStore


class Stores:
    """Stores by name; make it where an event loop runs."""

    def __init__(self, default: Cloud, named: Mapping[str, Cloud], data: Path) -> None:
        self._settings = {"": default, **named}
        self._data = data
        self._open: dict[Cloud, ObjectStore] = {}

    def get(self, name: str) -> ObjectStore:
        """The store of this name, empty for the one without; two names may be one client.

        Raises ResourceUnknown, and ConfigError when its settings do not fit together.
        """
        settings = self._named(name)
        if settings not in self._open:
            self._open[settings] = open_store(settings, self._data)
        return self._open[settings]

    def described(self, name: str) -> StoreReply:
        """Where the store of this name is; raises ResourceUnknown."""
        return describe(self._named(name), self._data)

    def _named(self, name: str) -> Cloud:
        settings = self._settings.get(name)
        if settings is None:
            raise ResourceUnknown("object store", name)
        return settings

    async def close(self) -> None:
        for store in self._open.values():
            await store.close()
        self._open.clear()
