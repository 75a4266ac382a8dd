"""Composition roots: build a broker, a fetch node or a NATS server from settings, and run it.

`broker.serve` runs a broker or a fetch node, `nats_server.serve` a NATS server. The modules are
imported one by one, since a NATS server without streams must start without the storage.
"""
