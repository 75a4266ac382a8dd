"""The command `penstock-nats-server`: a drop-in replacement for nats-server."""

from penstock.cli.nats_server.command import main

__all__ = ["main"]
