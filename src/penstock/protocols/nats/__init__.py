"""The NATS protocol: a server for clients, JetStream on top of it, and the monitoring port.

`NatsServer` accepts clients, `Monitor` serves figures over HTTP as nats-server does. `JetStream`
(module `jetstream`) answers `$JS.` subjects and stores publishes in streams; it is not imported
here, because a server without streams starts without loading storage and pyarrow.
"""

from penstock.protocols.nats.clients import NatsLimits
from penstock.protocols.nats.greeting import Credentials
from penstock.protocols.nats.monitor import Monitor
from penstock.protocols.nats.server import NatsServer

__all__ = ["Credentials", "Monitor", "NatsLimits", "NatsServer"]
