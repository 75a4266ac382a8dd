"""The HTTP server: push, fetch, the admin API, routes for engines, and the channel API.

`App` is the ASGI application, which handles requests with the parts in `Backend`; `HttpServer`
serves it. `penstock.protocols.http.channels` adds the routes of channels.
"""

from penstock.protocols.http.app import App
from penstock.protocols.http.backend import Backend, Compact, Sweep
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.connections import HttpLimits
from penstock.protocols.http.server import HttpServer

__all__ = ["App", "Backend", "Bodies", "Compact", "HttpLimits", "HttpServer", "Sweep"]
