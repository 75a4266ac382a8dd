"""The channel API: producers, channels, consumers, messages, jobs and dead jobs, at the root path.

Each handler parses a request, calls the `ChannelService`, and builds a reply.
"""

from penstock.protocols.http.channels.gateway import Gateway
from penstock.protocols.http.channels.routes import ROOTS, channel_router, section

__all__ = ["ROOTS", "Gateway", "channel_router", "section"]
