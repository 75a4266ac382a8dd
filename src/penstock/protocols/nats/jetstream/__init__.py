"""JetStream over NATS: answers `$JS.` subjects and stores publishes in streams.

`JetStream` connects the parts: `api` dispatches requests to the endpoints in `stream_api`,
`consumer_api` and `message_api`; `direct_get` answers direct gets; `acks` passes pull requests and
acks to consumers; `publish` passes messages to streams. A server without streams does not import
this package, so that it starts without loading storage and pyarrow.
"""

from penstock.protocols.nats.jetstream.service import JetStream

__all__ = ["JetStream"]
