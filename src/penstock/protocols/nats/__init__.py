"""The NATS protocol: a server for clients, and the monitoring port.

`NatsServer` accepts clients, `Monitor` serves figures over HTTP as nats-server does. The package
`jetstream` adds streams and consumers to a server.
"""

from penstock.protocols.nats.clients import NatsLimits
from penstock.protocols.nats.greeting import Credentials
from penstock.protocols.nats.monitor import Monitor
from penstock.protocols.nats.server import NatsServer

__all__ = ["Credentials", "Monitor", "NatsLimits", "NatsServer"]
