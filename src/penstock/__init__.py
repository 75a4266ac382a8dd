"""Penstock: a durable message broker that is pulled."""

__version__ = "0.1.0"
