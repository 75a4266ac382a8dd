"""Composition roots: build a broker, a fetch node or a NATS server from settings, and run it.

The modules are public, so that a NATS server without streams starts without loading the storage.
`broker` runs a broker or a fetch node, `nats_server` a NATS server. `directory` and `storage` give
commands access to the data of a broker that is stopped.
"""
