"""The same world as that of the tiers."""

from tests.unit.tiers.conftest import light, world

__all__ = ["light", "world"]
