"""Exchanges that need no network: what is asked is noted, what is answered was given before."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.objects.calls import CallLimits
from penstock.objects.exchanges import Exchanges, NoReply, Reply


class Asked(NamedTuple):
    """One request."""

    method: str
    url: str
    headers: Mapping[str, str]


class CannedExchanges(Exchanges):
    """Answers by method and URL, in turn where there are several; no reply to anything else."""

    def __init__(self, answers: Mapping[str, Reply | list[Reply]]) -> None:
        super().__init__(CallLimits())
        self.answers = {key: [a] if isinstance(a, Reply) else [*a] for key, a in answers.items()}
        self.asked: list[Asked] = []
        self.closed = False

    async def ask(
        self, method: str, url: str, headers: Mapping[str, str], retries_max: int | None = None
    ) -> Reply:
        self.asked.append(Asked(method, url, headers))
        answers = self.answers.get(f"{method} {url}")
        if not answers:
            raise NoReply(f"no answer to {method} {url}")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def close(self) -> None:
        self.closed = True
