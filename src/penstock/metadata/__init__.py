"""Small, shared, transactional facts: who owns what, which objects there are, how far readers are.
"""
