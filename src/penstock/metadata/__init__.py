"""Small, shared, transactional facts: who owns what, which objects exist, how far readers are."""
