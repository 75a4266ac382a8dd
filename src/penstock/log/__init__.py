"""The append-only log of a topic: append, commit, recover, read, index, delete."""
