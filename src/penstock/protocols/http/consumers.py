"""GET .../consumers: how far the consumers of a topic are."""

from __future__ import annotations

from penstock.delivery.consumers import ConsumerCursor, Deliveries, consumer_page
from penstock.formats import api
from penstock.formats.api import ConsumerList
from penstock.metadata.catalog import PAGE_SIZE_MAX
from penstock.protocols.http.admin import PAGE, page_of
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.errors import BadRequest, FetchOnly
from penstock.protocols.http.plan import TOPIC, opened_topic
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request, Route


class ConsumerPages:
    """Serves lists of consumers; only a topic's owner has them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        errors = dict.fromkeys((400, 404, 421, 503), api.ErrorReply)
        return [
            Route(
                "GET",
                f"{TOPIC}/consumers",
                self.consumers,
                "How far the consumers of a topic are, page by page.",
                {200: ConsumerList, **errors},
                parameters=PAGE,
            )
        ]

    async def consumers(self, request: Request) -> Reply:
        asked = page_of(request.query("page_size", "page_token"))
        after = None if not asked.token else _place(asked.token)
        opened = await opened_topic(self._backend, request)
        deliveries: Deliveries | None = self._backend.deliveries
        if deliveries is None:
            raise FetchOnly("consumers are not served here; ask a broker")
        size = min(max(asked.size, 1), PAGE_SIZE_MAX)
        found = await consumer_page(deliveries, opened.topic, after, size + 1)
        page = found[:size]
        more = f"{page[-1].partition_id}/{page[-1].name}" if len(found) > size else ""
        return Reply(200, ConsumerList(page, more))


def _place(token: str) -> ConsumerCursor:
    number, slash, name = token.partition("/")
    if not slash or not number.isdecimal() or len(number) > 10:
        raise BadRequest("page_token is not one of these pages")
    return ConsumerCursor(int(number), name)
