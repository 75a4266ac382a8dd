"""Plays the exchanges of a session to a server, and writes down what it answered."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Final

from tests.conformance.nats.exchanges import Exchange, Step
from tests.conformance.nats.normal import Normal
from tests.conformance.nats.wire import ANSWER_SECONDS, USUAL, Wire

NOTICE_SECONDS: Final = 0.2
"""nats-server has noticed after this what nobody is told about: acknowledgements without a reply,
and for a consumer what was published."""
SILENCE_SECONDS: Final = 4.0
"""Some frames that one of the servers sends never come from the other one."""
POLL_SECONDS: Final = 0.05
TIMES: Final = re.compile(r"\{(.)\*([0-9]+)\}")
BEHIND: Final = re.compile(r"(\$JS\.ACK\.\S+<time>)\.[0-9]+")
ASKS: Final = {"api", "ask", "stream", "consumer", "info", "state"}


class Replay:
    """One session with one server; `guide` is what another one answered to the same exchanges.

    With a guide, questions about a state that follows later (`info` and `state`) are asked again
    until they are answered in the same way, or it is too late.
    """

    def __init__(self, port: int, exchanges: Sequence[Exchange], guide: Sequence[list[str]] = ()):
        self._port = port
        self._exchanges = exchanges
        self._guide = guide
        script = " ".join(step.arguments for one in exchanges for step in one.steps)
        self._normal = Normal(script)
        self._main = self._wire = Wire(port)
        self._aside: Wire | None = None
        self._deliveries: list[str] = []
        self._number = self._inboxes = 0
        self._open: list[int] = []
        self._lines: list[str] = []
        self._guided: list[str] = []

    def run(self) -> list[list[str]]:
        """The lines of every exchange."""
        transcripts = []
        for number, exchange in enumerate(self._exchanges):
            self._number, self._lines, self._inboxes = number, [], 0
            self._guided = self._guide[number] if self._guide else []
            for step in exchange.steps:
                self._step(step)
            self._wire = self._main
            self._forget()
            self._main.settle()
            self._collect()
            transcripts.append(_as_compared(self._lines, exchange.kinds))
        self.close()
        return transcripts

    def close(self) -> None:
        self._main.close()
        if self._aside is not None:
            self._aside.close()

    def _step(self, step: Step) -> None:
        arguments = step.arguments
        for number, name in enumerate(self._normal.made_up, 1):
            arguments = arguments.replace(f"<name {number}>", name)
        self._wire = self._main
        verb = step.verb
        if verb == "aside":
            if self._aside is None:
                self._aside = Wire(self._port)
            self._wire = self._aside
            verb, _, arguments = arguments.partition(" ")
        step = step._replace(verb=verb, arguments=arguments)
        if verb in ("info", "state"):
            self._ask_again(step)
        else:
            self._perform(step)

    def _perform(self, step: Step) -> None:
        getattr(self, f"_{step.verb}")(step)
        if step.frames is None and step.verb in (*ASKS, "next", "askack"):
            self._await(1, f"{self._number}i{self._inboxes}")
        else:
            self._await(step.frames or 0)

    def _ask_again(self, step: Step) -> None:
        """A state that is still on its way to what the guide has is not an answer yet."""
        if not self._guide:
            time.sleep(NOTICE_SECONDS)
            return self._perform(step)
        deadline = time.monotonic() + ANSWER_SECONDS
        self._collect()
        before, inbox = list(self._lines), self._inboxes
        while True:
            self._perform(step)
            late = time.monotonic() > deadline
            if late or self._lines == self._guided[: len(self._lines)]:
                return None
            if self._lines[: len(before)] != self._guided[: len(before)]:
                return None
            time.sleep(POLL_SECONDS)
            self._lines, self._inboxes = list(before), inbox

    def _await(self, frames: int, sid: str = "") -> None:
        if frames:
            self._wire.read_until(frames, SILENCE_SECONDS, sid=sid)
        else:
            self._wire.settle()
        self._collect()

    def _collect(self) -> None:
        for frame in self._wire.take():
            if frame.reply.startswith("$JS.ACK."):
                self._deliveries.append(frame.reply)
            self._lines.append(self._without_number(self._normal.line(frame)))

    def _without_number(self, line: str) -> str:
        """Inboxes differ from one exchange to the next, which says nothing within one."""
        line = line.replace(f"_INBOX.{self._number}.", "_INBOX.")
        return re.sub(rf" {self._number}i([0-9]+)\b", r" i\1", line)

    def _inbox(self) -> str:
        self._inboxes += 1
        self._open.append(self._inboxes)
        inbox = f"_INBOX.{self._number}.{self._inboxes}"
        self._wire.send(f"SUB {inbox} {self._number}i{self._inboxes}\r\n".encode())
        return inbox

    def _ask_for(self, subject: str, body: str, headers: bytes = b"") -> None:
        self._wire.publish(subject, _repeated(body).encode(), self._inbox(), headers)

    def _connect(self, step: Step) -> None:
        self._main.close()
        options = None if step.arguments == "-" else step.arguments or USUAL
        self._main = self._wire = Wire(self._port, options)

    def _raw(self, step: Step) -> None:
        text = TIMES.sub(lambda found: found[1] * int(found[2]), step.arguments)
        self._wire.send(text.encode().decode("unicode_escape").encode("latin-1"))

    def _sub(self, step: Step) -> None:
        self._wire.send(f"SUB {step.arguments}\r\n".encode())

    def _unsub(self, step: Step) -> None:
        self._wire.send(f"UNSUB {step.arguments}\r\n".encode())

    def _api(self, step: Step) -> None:
        subject, _, body = step.arguments.partition(" ")
        self._ask_for(f"$JS.API.{subject}", body, step.headers)

    def _ask(self, step: Step) -> None:
        subject, _, body = step.arguments.partition(" ")
        self._ask_for(subject, body, step.headers)

    def _stream(self, step: Step) -> None:
        text = _repeated(step.arguments)
        self._ask_for(f"$JS.API.STREAM.CREATE.{json.loads(text)['name']}", text)

    def _consumer(self, step: Step) -> None:
        stream, name, config = step.arguments.split(" ", 2)
        usual = {"name": name, "durable_name": name, "ack_policy": "explicit"}
        body = {"stream_name": stream, "config": usual | json.loads(config)}
        self._ask_for(f"$JS.API.CONSUMER.CREATE.{stream}.{name}", json.dumps(body))

    def _info(self, step: Step) -> None:
        stream, name = step.arguments.split(" ")
        self._ask_for(f"$JS.API.CONSUMER.INFO.{stream}.{name}", "")

    def _state(self, step: Step) -> None:
        stream, _, body = step.arguments.partition(" ")
        self._ask_for(f"$JS.API.STREAM.INFO.{stream}", body)

    def _publish(self, step: Step) -> None:
        subject, *payloads = step.arguments.split(" ")
        for payload in payloads or [""]:
            self._ask_for(subject, payload, step.headers)
            self._await(1)
        if not self._guide:
            time.sleep(NOTICE_SECONDS / 2)

    def _send(self, step: Step) -> None:
        subject, *payloads = _repeated(step.arguments).split(" ")
        lines = [f"PUB {subject} {len(payload)}\r\n{payload}\r\n" for payload in payloads]
        self._wire.send("".join(lines).encode())

    def _sendmany(self, step: Step) -> None:
        prefix, count = step.arguments.split(" ")
        for number in range(int(count)):
            self._wire.publish(f"{prefix}.{number}", b"x")

    def _next(self, step: Step) -> None:
        stream, name, *body = step.arguments.split(" ", 2)
        self._ask_for(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", "".join(body), step.headers)

    def _ack(self, step: Step) -> None:
        which, _, payload = step.arguments.partition(" ")
        self._wire.publish(self._deliveries[int(which)], payload.encode())

    def _askack(self, step: Step) -> None:
        which, _, payload = step.arguments.partition(" ")
        self._ask_for(self._deliveries[int(which)], payload)

    def _pub(self, step: Step) -> None:
        subject, reply, *payload = step.arguments.split(" ", 2)
        if found := re.fullmatch(r"<ack (-[0-9]+)>", subject.replace("_", " ")):
            subject = self._deliveries[int(found[1])]
        text = "".join(payload).encode()
        self._wire.publish(subject, text, "" if reply == "-" else reply, step.headers)

    def _wait(self, step: Step) -> None:
        time.sleep(float(step.arguments))

    def _more(self, step: Step) -> None:
        """Nothing is sent."""

    def _forget(self, step: Step | None = None) -> None:
        """Nobody listens any more to the answers of this exchange."""
        sids = [f"{self._number}i{inbox}" for inbox in self._open]
        self._main.send("".join(f"UNSUB {sid}\r\n" for sid in sids).encode())
        self._open = []

    def _leave(self, step: Step) -> None:
        assert self._aside is not None
        self._aside.close()
        self._aside = None


def _repeated(text: str) -> str:
    return TIMES.sub(lambda found: found[1] * int(found[2]), text)


def _as_compared(lines: list[str], kinds: list[str]) -> list[str]:
    if "uncounted" in kinds:
        lines = [BEHIND.sub(r"\1", line) for line in lines]
    return sorted(lines) if "unordered" in kinds else lines
