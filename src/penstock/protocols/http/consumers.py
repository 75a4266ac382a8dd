"""GET .../consumers: the positions of a topic's consumers."""

from __future__ import annotations

from penstock.delivery.consumers import ConsumerCursor, Deliveries, consumer_page
from penstock.formats import api
from penstock.formats.admin_api import TOPIC
from penstock.formats.api import ConsumerList
from penstock.metadata.catalog import PAGE_SIZE_MAX
from penstock.protocols.http.admin import PAGE, page_of
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.errors import BadRequest, FetchOnly
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.requests import opened_topic
from penstock.protocols.http.routes import Request, Route


class ConsumerPages:
    """Lists consumers; only the owner of a topic can."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        errors = dict.fromkeys((400, 404, 421, 503), api.ErrorReply)
        return [
            Route(
                "GET",
                f"{TOPIC.path}/consumers",
                self.consumers,
                "List the positions of a topic's consumers, page by page.",
                {200: ConsumerList, **errors},
                parameters=PAGE,
            )
        ]

    async def consumers(self, request: Request) -> Reply:
        page = page_of(request.query("page_size", "page_token"))
        after = _cursor(page.token) if page.token else None
        opened = await opened_topic(self._backend, request)
        deliveries: Deliveries | None = self._backend.deliveries
        if deliveries is None:
            raise FetchOnly("consumers are not served here; ask a broker")
        size = min(max(page.size, 1), PAGE_SIZE_MAX)
        consumers = await consumer_page(deliveries, opened.topic, after, size + 1)
        next_token = ""
        if len(consumers) > size:
            last = consumers[size - 1]
            next_token = f"{last.partition_id}/{last.name}"
        return Reply(200, ConsumerList(consumers[:size], next_token))


def _cursor(token: str) -> ConsumerCursor:
    number, slash, name = token.partition("/")
    if not slash or not number.isdecimal() or len(number) > 10:
        raise BadRequest("page_token is not the next_page_token of a previous page")
    return ConsumerCursor(int(number), name)
