"""The channel API at the root: producers, channels, consumers, messages, jobs, dead letters."""
