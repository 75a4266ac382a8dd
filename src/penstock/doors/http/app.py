"""The HTTP door's requests, as raw ASGI: health, readiness, metrics."""

from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.doors.http import metrics
from penstock.doors.http.reply import Event, Receive, Reply, Send, answer, error
from penstock.model.metrics import Metric

Readiness: TypeAlias = Callable[[], tuple[bool, dict[str, object]]]
"""Whether the broker can serve now, and the facts to tell with it."""

Figures: TypeAlias = Callable[[], list[Metric]]
"""What there is to measure, now."""

READ_METHODS: Final = ("GET", "HEAD")


class App:
    """Routes every request to exactly one reply."""

    def __init__(self, readiness: Readiness, figures: Figures) -> None:
        self._readiness, self._figures = readiness, figures
        self._routes = {
            "/healthz": _health,
            "/metrics": self._metrics,
            "/readyz": self._ready,
        }

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        await answer(scope, send, self._reply(scope["method"], scope["path"]))

    def _reply(self, method: str, path: str) -> Reply:
        handler = self._routes.get(path)
        if handler is None:
            return error(404, f"there is nothing at {path}")
        if method not in READ_METHODS:
            allow = ", ".join(READ_METHODS)
            refused = error(405, f"{path} takes {allow}, not {method}")
            return refused._replace(headers=((b"allow", allow.encode()),))
        return handler()

    def _metrics(self) -> Reply:
        return Reply(200, metrics.render(self._figures()), content_type=metrics.CONTENT_TYPE)

    def _ready(self) -> Reply:
        ready, facts = self._readiness()
        return Reply(200 if ready else 503, {"status": "ready" if ready else "not ready", **facts})


def _health() -> Reply:
    return Reply(200, {"status": "ok"})
