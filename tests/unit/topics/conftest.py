"""Fixtures of the tiers' tests, used for topics too."""

from tests.unit.tiers.conftest import light, world

__all__ = ["light", "world"]
