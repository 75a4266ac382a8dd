"""Takeover of a topic without its WAL, and the later return of that WAL's messages."""
