"""Penstock: a durable message broker that is pulled.

`penstock.Client` (asyncio) and `penstock.SyncClient` talk to a broker, `penstock.spark` makes
tables of topics; they are imported when they are first named, so that commands start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.aio import Client as Client
    from penstock.client.exchange import BrokerRefused as BrokerRefused
    from penstock.client.exchange import BrokerUnreachable as BrokerUnreachable
    from penstock.client.sync import SyncClient as SyncClient

__version__ = "0.1.0"

_PUBLIC = {
    "BrokerRefused": "penstock.client.exchange",
    "BrokerUnreachable": "penstock.client.exchange",
    "Client": "penstock.client.aio",
    "SyncClient": "penstock.client.sync",
}


def __getattr__(name: str) -> object:
    if name == "spark":
        return import_module("penstock.spark")
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
