"""Consumers of streams: what was delivered to whom, and what came back."""
