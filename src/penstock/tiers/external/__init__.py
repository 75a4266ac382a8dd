"""Objects that other engines write: swaps in compacted ones and deletes abandoned ones."""
