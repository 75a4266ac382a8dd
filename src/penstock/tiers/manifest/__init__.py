"""The manifest of a topic: which offsets are in which object, and the record of deletions."""
