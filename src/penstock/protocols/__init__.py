"""The protocols of a broker, each a package of its own, and the sockets that they listen on."""

from penstock.protocols.listener import ALL_INTERFACES, EVERY_FAMILY, Listener, listen

__all__ = ["ALL_INTERFACES", "EVERY_FAMILY", "Listener", "listen"]
