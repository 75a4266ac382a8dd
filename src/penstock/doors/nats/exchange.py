"""Where publishes go: to whoever subscribed, to the stream that keeps the subject, or to a service.

A service is a part of the broker that answers on subjects of its own, `$JS.` and what follows. Runs
are handed on as runs: neighbours that go to the same place go together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Protocol

from penstock.doors.nats.client import Client, Subscription
from penstock.doors.nats.interest import ACKS, INBOX, NOBODY, Interest, Matched
from penstock.wire import headers as header_blocks
from penstock.wire.parser import Publishes

SERVICES: Final = b"$JS."
TARGETS_MAX: Final = 8192


class Target(Protocol):
    """Takes publishes, beside those who subscribed to their subjects."""

    def take(self, sender: Client, run: Publishes) -> None:
        """A run of which every subject belongs here; answers go to its replies."""


class Exchange:
    """Implements Outlet; one for the door."""

    def __init__(self, interest: Interest) -> None:
        self._interest = interest
        self._targets: dict[bytes, Target | None] = {}
        self._departures: dict[int, dict[int, Callable[[], None]]] = {}
        self._calls = 0
        self.target_of: Callable[[bytes], Target | None] = lambda subject: None
        """Who takes a subject; what it told is asked again after `changed`."""
        self.acks: Target | None = None
        """Takes what goes to `$JS.ACK.`."""
        self.on_departed: Callable[[int], None] = lambda number: None
        """Told the number of every client that is gone."""

    def changed(self) -> None:
        """Subjects may belong to others now."""
        self._targets.clear()

    # -- from clients

    def publish(self, sender: Client, run: Publishes) -> None:
        subjects = run.subjects
        first = subjects[0]
        unheard = None if self._interest.hears_acks else self.acks
        if unheard is not None and first.startswith(ACKS) and _all_acks(subjects):
            unheard.take(sender, run)
        elif subjects.count(first) == len(subjects):
            self._publish_alike(sender, self._target(first), run)
        else:
            for target, part in self._parts(run):
                if target is not None and target is unheard:
                    target.take(sender, part)
                else:
                    self._publish_mixed(sender, target, part)

    def _publish_alike(self, sender: Client, target: Target | None, run: Publishes) -> None:
        """All messages have one subject."""
        matched = self._interest.match(run.subjects[0])
        if matched is not NOBODY or target is None:
            if len(run.payloads) == 1:
                self._publish_one(sender, target, matched, run.subjects[0], *next(_rows(run)))
            elif matched.plain and not matched.queues and _bare(run):
                self._spread_run(matched.plain, run, sender)
            else:
                self._publish_mixed(sender, target, run)
                return
        if target is not None:
            target.take(sender, run)

    def _publish_mixed(self, sender: Client, target: Target | None, run: Publishes) -> None:
        for subject, row in zip(run.subjects, _rows(run), strict=True):
            # Asked each time: a subscription may end with the message before.
            self._publish_one(sender, target, self._interest.match(subject), subject, *row)
        if target is not None:
            target.take(sender, run)

    def _publish_one(
        self,
        sender: Client,
        target: Target | None,
        matched: Matched,
        subject: bytes,
        reply: bytes,
        block: bytes,
        payload: bytes,
    ) -> None:
        """To whoever subscribed; without anybody at all, the sender is told."""
        count = self._spread(matched, subject, reply, block, payload, sender)
        if not count and target is None and reply and sender.options.no_responders:
            self.no_responders(subject, reply)

    def hand_over(self, sender: Client, run: Publishes) -> None:
        """Give a run, which its subscribers have got already, to whoever takes it now."""
        for target, some in self._parts(run):
            if target is not None:
                target.take(sender, some)
            else:
                self.refuse(sender, some)

    def refuse(self, sender: Client, run: Publishes) -> None:
        """Nobody takes these, but perhaps whoever subscribed."""
        if sender.options.no_responders:
            for subject, reply in zip(run.subjects, run.replies, strict=True):
                if reply and not self._interest.has(subject):
                    self.no_responders(subject, reply)

    def _parts(self, run: Publishes) -> Iterator[tuple[Target | None, Publishes]]:
        """Neighbours that go to the same place."""
        targets = list(map(self._target, run.subjects))
        pairs = enumerate(pairwise(targets), 1)
        starts = [0, *(index for index, (one, next_) in pairs if one is not next_)]
        for start, stop in pairwise([*starts, len(targets)]):
            yield targets[start], part(run, start, stop)

    def _target(self, subject: bytes) -> Target | None:
        if subject.startswith(ACKS):
            return self.acks
        try:
            return self._targets[subject]
        except KeyError:
            target = self.target_of(subject)
        if not subject.startswith(INBOX):
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            self._targets[subject] = target
        return target

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        """Nobody takes what was sent to `subject`."""
        self.send(reply, b"", header_blocks.status(503, b"", (b"Nats-Subject", subject)), b"")

    # -- to clients

    def has_interest(self, subject: bytes) -> bool:
        return self._interest.has(subject)

    def on_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        return self._interest.on_come(subject, call)

    def on_no_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        return self._interest.on_gone(subject, call)

    def on_departure(self, inbox: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when a client that subscribes to `inbox` now is gone."""
        self._calls += 1
        number = self._calls
        clients = {to.client.number for to in self._chosen(self._interest.match(inbox))}
        for client in clients:
            self._departures.setdefault(client, {})[number] = call

        def cancel() -> None:
            for client in clients:
                self._departures.get(client, {}).pop(number, None)

        return cancel

    def departed(self, client: Client) -> None:
        """A client is gone."""
        for call in list(self._departures.pop(client.number, {}).values()):
            call()
        self.on_departed(client.number)

    def send(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> int:
        """To whoever subscribed; how many connections got it."""
        return self._spread(self._interest.match(subject), subject, reply, headers, payload)

    def send_rows(
        self,
        inbox: bytes,
        subjects: Sequence[bytes],
        replies: Sequence[bytes],
        headers: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> int:
        """A run to the subscriber of `inbox`, each message under its own subject; how many of
        them somebody got.
        """
        most = 0
        for to in self._chosen(self._interest.match(inbox)):
            most = max(most, to.client.deliver_rows(to, subjects, replies, headers, payloads))
        return most

    def recipients(self, subject: bytes) -> Sequence[Subscription]:
        """Who gets the next message of this subject."""
        return self._chosen(self._interest.match(subject))

    def recipients_of_all(self, subjects: Sequence[bytes]) -> Sequence[Subscription] | None:
        """Who gets a message of each of these, if it is the same for all."""
        return self._interest.match_all(subjects)

    async def drained(self, inbox: bytes) -> None:
        """Wait until whoever subscribed to `inbox` has taken most of what was sent."""
        for to in self._chosen(self._interest.match(inbox)):
            await to.client.drained()

    def answer(self, replies: Sequence[bytes], payloads: Sequence[bytes]) -> None:
        """Many answers, each to its own reply subject; mostly all go to one connection."""
        first = replies[0]
        if replies.count(first) == len(replies):
            for to in self._chosen(self._interest.match(first)):
                to.client.deliver_rows(to, first, None, None, payloads)
            return
        to_all = self.recipients_of_all(replies)
        if to_all is None:
            for reply, text in zip(replies, payloads, strict=True):
                self.send(reply, b"", b"", text)
            return
        for to in to_all:
            to.client.deliver_rows(to, replies, None, None, payloads)

    def _chosen(self, matched: Matched, silent: Client | None = None) -> Sequence[Subscription]:
        """Who gets a message that `silent` must not get."""
        if not matched.queues and silent is None:
            return matched.plain
        plain = [to for to in matched.plain if to.client is not silent]
        groups = ([to for to in group if to.client is not silent] for group in matched.queues)
        return plain + [random.choice(group) for group in groups if group]  # noqa: S311

    def _spread_run(
        self, receivers: Sequence[Subscription], run: Publishes, sender: Client
    ) -> None:
        """A whole run of one subject and nothing but payloads."""
        silent = None if sender.options.echo else sender
        for to in receivers:
            if to.client is not silent:
                to.client.deliver_rows(to, run.subjects[0], None, None, run.payloads)

    def _spread(
        self,
        matched: Matched,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        sender: Client | None = None,
    ) -> int:
        silent = sender if sender is not None and not sender.options.echo else None
        chosen = self._chosen(matched, silent)
        for to in chosen:
            to.client.deliver(to, subject, reply, headers, payload)
        return len(chosen)


def part(run: Publishes, start: int, stop: int) -> Publishes:
    """Neighbours of a run."""
    if start == 0 and stop == len(run.payloads):
        return run
    headers = None if run.headers is None else run.headers[start:stop]
    return Publishes(
        run.subjects[start:stop], run.replies[start:stop], headers, run.payloads[start:stop]
    )


def _bare(run: Publishes) -> bool:
    """Whether no message has headers or asks for a reply."""
    return run.headers is None and not any(run.replies)


def _rows(run: Publishes) -> Iterator[tuple[bytes, bytes, bytes]]:
    headers = [b""] * len(run.payloads) if run.headers is None else run.headers
    return zip(run.replies, headers, run.payloads, strict=True)


def _all_acks(subjects: list[bytes]) -> bool:
    return b"\n".join(subjects).count(b"\n" + ACKS) == len(subjects) - 1
