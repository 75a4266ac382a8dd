"""The fixtures of the tiers."""

from tests.unit.tiers.conftest import light, world

__all__ = ["light", "world"]
