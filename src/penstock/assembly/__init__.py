"""Composition roots: build a broker, a fetch node or a NATS server from settings, and run it.

`serve` runs a broker or a fetch node, `serve_nats` a NATS server. `locked`, `open_metadata` and
`open_objects` give commands access to the storage of a broker that is stopped. Each name loads its
module at its first use, since a NATS server without streams must start without the storage.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.assembly.broker import serve
    from penstock.assembly.directory import locked
    from penstock.assembly.nats_server import NatsServerPlan, serve_nats
    from penstock.assembly.storage import open_metadata, open_objects

__all__ = [
    "NatsServerPlan",
    "locked",
    "open_metadata",
    "open_objects",
    "serve",
    "serve_nats",
]

_MODULES: Final = {
    "NatsServerPlan": "nats_server",
    "locked": "directory",
    "open_metadata": "storage",
    "open_objects": "storage",
    "serve": "broker",
    "serve_nats": "nats_server",
}


def __getattr__(name: str) -> object:
    """Load the module of a public name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
