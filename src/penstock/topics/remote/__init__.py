"""Reads the topics of other brokers, for a node that has neither logs nor manifests.

`RemoteSource` implements `penstock.topics.Source`: it reads objects from the bucket, and the newest
messages from their owners through the connections of `Owners`.
"""

from penstock.topics.remote.owners import Owners, OwnerUnavailable
from penstock.topics.remote.source import RemoteSource

__all__ = ["OwnerUnavailable", "Owners", "RemoteSource"]
