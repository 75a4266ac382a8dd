"""Subscriptions: ledgers carried out over streams, for whoever listens."""
