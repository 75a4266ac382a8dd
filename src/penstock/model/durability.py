"""What an acknowledgement promises; a property of a topic."""

from __future__ import annotations

from enum import Enum


class Durability(Enum):
    """Each level survives what the ones before it survive."""

    MEMORY = "memory"
    """Fire and forget: kept in the tail cache only, gone with the process."""
    FSYNC = "fsync"
    """Survives the death of the process and a power cut of this machine."""
    CLOUD = "cloud"
    """Survives the loss of this machine: acknowledged after the object and its manifest entry."""
