"""The wiring diagram: builds a broker from a configuration, and runs it."""

from penstock.assembly.broker import Broker, serve

__all__ = ["Broker", "serve"]
