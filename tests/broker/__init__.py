"""A broker's parts in the test's own process, layer by layer, without its command line.

- `storage`: logs, metadata, ownership and tiers over a directory and a bucket that outlive a crash.
- `topics`, `streams`: topics and streams over that storage, without servers.
- `nats`, `jetstream`, `consumers`: a NATS server over streams and consumers, and plain clients.
- `http`: the HTTP application, called without a socket.

The fixtures are in tests/unit/conftest.py.
"""
