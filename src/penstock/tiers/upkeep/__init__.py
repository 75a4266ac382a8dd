"""Upkeep of a topic's tiers: merge, retention, trash, WAL pruning and snapshots."""
