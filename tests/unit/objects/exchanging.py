"""Requests without a network: they are recorded and receive prepared replies."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.objects.calls import CallLimits
from penstock.objects.s3_requests import Exchanges, NoReply, S3Response


class Asked(NamedTuple):
    """One request."""

    method: str
    url: str
    headers: Mapping[str, str]


class CannedExchanges(Exchanges):
    """Replies by method and URL, several in turn; other requests get no reply."""

    def __init__(self, answers: Mapping[str, S3Response | list[S3Response]]) -> None:
        super().__init__(CallLimits())
        self.answers = {
            key: [a] if isinstance(a, S3Response) else [*a] for key, a in answers.items()
        }
        self.asked: list[Asked] = []
        self.closed = False

    async def ask(
        self, method: str, url: str, headers: Mapping[str, str], retries_max: int | None = None
    ) -> S3Response:
        self.asked.append(Asked(method, url, headers))
        answers = self.answers.get(f"{method} {url}")
        if not answers:
            raise NoReply(f"no answer to {method} {url}")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def close(self) -> None:
        self.closed = True
