"""Penstock: a durable, pull-based message broker.

`penstock.Client` (asyncio) and `penstock.SyncClient` are clients of a broker, `penstock.nats` is a
NATS client, `penstock.spark` reads and writes topics with Spark. They are imported on first use, so
that commands start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client import BrokerRefused, BrokerUnreachable, Client, SyncClient

__version__ = "0.1.0"
__all__ = ["BrokerRefused", "BrokerUnreachable", "Client", "SyncClient", "__version__"]


def __getattr__(name: str) -> object:
    if name == "spark":
        return import_module("penstock.spark")
    if name in __all__:
        return getattr(import_module("penstock.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
