"""Exchanges as data: who sends what in which order; answers are never in them.

A file under `exchanges/` is one session with one server. A line in brackets begins an exchange and
names it. Behind the brackets, `unordered` means that answers may come in any order, and `uncounted`
that messages arrive while they are delivered, so that how many are behind one says nothing. Every
other line is a step, `verb[*frames] arguments`; `*frames` says how many frames it waits for before
the next one.

| Step | What is sent |
|---|---|
| `connect [OPTIONS]` | a new connection, which the next steps use; `-` for no CONNECT at all |
| `raw TEXT` | these bytes, with `\\r`, `\\n` and `\\t` spelt out; `{x*N}` stands for N times x |
| `sub SUBJECT [QUEUE] SID`, `unsub SID [MOST]` | the command |
| `api REST BODY`, `ask SUBJECT BODY` | a request with an inbox of its own; `api` adds `$JS.API.` |
| `stream CONFIG`, `consumer STREAM NAME CONFIG` | the create request; a consumer acks explicitly |
| `info STREAM NAME`, `state STREAM [BODY]` | the info request |
| `publish SUBJECT PAYLOAD...` | one acknowledged message for each payload |
| `send SUBJECT PAYLOAD...` | the same without a reply, in one write |
| `sendmany PREFIX COUNT` | a message to each of `PREFIX.0`, `PREFIX.1` and so on |
| `next STREAM NAME BODY` | a pull request with an inbox of its own |
| `ack WHICH PAYLOAD`, `askack WHICH PAYLOAD` | to a delivery, -1 the last; `askack` with a reply |
| `pub SUBJECT REPLY PAYLOAD` | exactly this; `-` for no reply |
| `wait SECONDS`, `more` | nothing; `more*2` waits for two frames |
| `forget` | unsubscribes every inbox of the exchange so far; its end does so too |
| `aside STEP` | the step on a second connection, whose frames count as well |
| `leave` | closes the second connection |

`with NAME: VALUE | NAME: VALUE` before a step gives its message these headers. `<name 1>` is the
first name that the server made up, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

DIRECTORY: Final = Path(__file__).parent / "exchanges"
STEP: Final = re.compile(r"([a-z]+)(?:\*([0-9]+))?(?: (.*))?")
WITH: Final = re.compile(r"with (.*)")


class Step(NamedTuple):
    verb: str
    frames: int | None
    arguments: str
    headers: bytes


class Exchange(NamedTuple):
    session: str
    title: str
    kinds: list[str]
    steps: list[Step]

    @property
    def name(self) -> str:
        return f"{self.session}: {self.title}"


def sessions() -> list[str]:
    return sorted(path.stem for path in DIRECTORY.glob("*.txt"))


def read_session(session: str) -> list[Exchange]:
    return list(_parse(session, (DIRECTORY / f"{session}.txt").read_text(encoding="utf-8")))


def _parse(session: str, text: str) -> Iterator[Exchange]:
    exchange: Exchange | None = None
    headers = b""
    for line in filter(None, text.split("\n")):
        if line.startswith("["):
            if exchange is not None:
                yield exchange
            title, _, kind = line[1:].rpartition("]")
            exchange = Exchange(session, title, kind.split(), [])
            continue
        assert exchange is not None, line
        if found := WITH.fullmatch(line):
            headers = _header_block(found[1])
            continue
        step = STEP.fullmatch(line)
        assert step is not None, line
        frames = None if step[2] is None else int(step[2])
        exchange.steps.append(Step(step[1], frames, step[3] or "", headers))
        headers = b""
    if exchange is not None:
        yield exchange


def _header_block(text: str) -> bytes:
    lines = ["NATS/1.0", *text.split(" | "), "", ""]
    return "\r\n".join(lines).encode()
