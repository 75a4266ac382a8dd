"""Channels: messages as jobs, pushed to callbacks or pulled."""
