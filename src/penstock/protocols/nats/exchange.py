"""Routes publishes to subscribers and to targets: the streams that store them, and services.

A service is a part of the broker that answers on subjects below `$JS.`. Consecutive messages for
the same target are passed on as one run.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Protocol

from penstock.host.notifier import Cancel, Notifier
from penstock.protocols.nats.client import ConnectedClient, Subscription
from penstock.protocols.nats.interest import ACKS, INBOX, Interest
from penstock.protocols.nats.lookups import NOBODY, Matched
from penstock.wire import headers as header_blocks
from penstock.wire.parser import Publishes

SERVICES: Final = b"$JS."
TARGETS_MAX: Final = 8192


class PublishTarget(Protocol):
    """Receives publishes in addition to the subscribers of their subjects."""

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        """Accept a run whose subjects all belong to this target; reply to its reply subjects."""


class Exchange:
    """Routes all messages of one server; implements `Outlet` for delivery."""

    def __init__(self, interest: Interest) -> None:
        self._interest = interest
        self._targets: dict[bytes, PublishTarget | None] = {}
        self._departure_calls: dict[int, dict[int, Callable[[], None]]] = {}
        self._calls = 0
        self._deliveries = 0
        self._resolve: Callable[[bytes], PublishTarget | None] = _no_target
        self._ack_target: PublishTarget | None = None
        self.departures: Notifier[[int]] = Notifier()
        """Receives the number of every client that disconnects."""

    def route(
        self,
        resolve: Callable[[bytes], PublishTarget | None],
        ack_target: PublishTarget | None = None,
    ) -> Cancel:
        """Pass publishes to the targets that `resolve` returns for their subjects, from now on.

        Its results are cached until `forget_targets`. `ack_target` receives the subjects below
        `$JS.ACK.`. Returns the function that ends this.
        """
        self._resolve, self._ack_target = resolve, ack_target
        self.forget_targets()

        def cancel() -> None:
            self._resolve, self._ack_target = _no_target, None
            self.forget_targets()

        return cancel

    def forget_targets(self) -> None:
        """Resolve every subject again, because streams or services changed."""
        self._targets.clear()

    # -- from clients

    @property
    def work(self) -> int:
        """The number of deliveries and visited subscriptions of all publishes so far."""
        return self._deliveries + self._interest.visited

    def publish(self, sender: ConnectedClient, run: Publishes, work_max: int = sys.maxsize) -> int:
        """Publish messages until `work` grew by `work_max`, but at least one; returns how many
        were published.
        """
        subjects, end = run.subjects, self.work + work_max
        first = subjects[0]
        ack_target = None if self._interest.hears_acks else self._ack_target
        if ack_target is not None and first.startswith(ACKS) and _all_acks(subjects):
            ack_target.take(sender, run)
            return len(subjects)
        if subjects.count(first) == len(subjects):
            return self._publish_alike(sender, self._target(first), run, end)
        published = 0
        for target, neighbours in self._parts(run):
            if target is not None and target is ack_target:
                target.take(sender, neighbours)
                published += len(neighbours.payloads)
            else:
                published += self._publish_mixed(sender, target, neighbours, end)
            if self.work >= end:
                break
        return published

    def _publish_alike(
        self, sender: ConnectedClient, target: PublishTarget | None, run: Publishes, end: int
    ) -> int:
        """Publish a run whose messages all have one subject."""
        matched, count = self._interest.match(run.subjects[0]), len(run.payloads)
        if matched is not NOBODY or target is None:
            if count == 1:
                self._publish_one(sender, target, matched, run.subjects[0], *next(_rows(run)))
            elif matched.plain and not matched.queues and _bare(run):
                count = min(count, max(1, (end - self.work) // len(matched.plain)))
                run = part(run, 0, count)
                self._spread_run(matched.plain, run, sender)
            else:
                return self._publish_mixed(sender, target, run, end)
        if target is not None:
            target.take(sender, run)
        return count

    def _publish_mixed(
        self, sender: ConnectedClient, target: PublishTarget | None, run: Publishes, end: int
    ) -> int:
        count = 0
        for subject, row in zip(run.subjects, _rows(run), strict=True):
            count += 1
            # Match for each message: a subscription may have ended with the one before.
            self._publish_one(sender, target, self._interest.match(subject), subject, *row)
            if self.work >= end:
                break
        if target is not None:
            target.take(sender, part(run, 0, count))
        return count

    def _publish_one(
        self,
        sender: ConnectedClient,
        target: PublishTarget | None,
        matched: Matched,
        subject: bytes,
        reply: bytes,
        block: bytes,
        payload: bytes,
    ) -> None:
        """Deliver to all subscribers. If there are none and no target, send no-responders."""
        count = self._spread(matched, subject, reply, block, payload, sender)
        if not count and target is None and reply and sender.options.no_responders:
            self.no_responders(subject, reply)

    def hand_over(self, sender: ConnectedClient, run: Publishes) -> None:
        """Pass a run that its subscribers have received to the targets of its subjects."""
        for target, neighbours in self._parts(run):
            if target is not None:
                target.take(sender, neighbours)
            else:
                self.refuse(sender, neighbours)

    def refuse(self, sender: ConnectedClient, run: Publishes) -> None:
        """Send no-responders for messages that have no target and no subscriber."""
        if sender.options.no_responders:
            for subject, reply in zip(run.subjects, run.replies, strict=True):
                if reply and not self._interest.has(subject):
                    self.no_responders(subject, reply)

    def _parts(self, run: Publishes) -> Iterator[tuple[PublishTarget | None, Publishes]]:
        """Split a run into neighbours with the same target."""
        targets = list(map(self._target, run.subjects))
        pairs = enumerate(pairwise(targets), 1)
        starts = [0, *(index for index, (before, after) in pairs if before is not after)]
        for start, stop in pairwise([*starts, len(targets)]):
            yield targets[start], part(run, start, stop)

    def _target(self, subject: bytes) -> PublishTarget | None:
        if subject.startswith(ACKS):
            return self._ack_target
        try:
            return self._targets[subject]
        except KeyError:
            target = self._resolve(subject)
        if not subject.startswith(INBOX):
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            self._targets[subject] = target
        return target

    def no_responders(self, subject: bytes, reply: bytes) -> None:
        """Send the no-responders status for a message to `subject`."""
        self.send(reply, b"", header_blocks.status(503, b"", (b"Nats-Subject", subject)), b"")

    # -- to clients

    def has_interest(self, subject: bytes) -> bool:
        return self._interest.has(subject)

    def on_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        return self._interest.on_interest(subject, call)

    def on_no_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        return self._interest.on_no_interest(subject, call)

    def on_departure(self, inbox: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when a client that subscribes to `inbox` now disconnects."""
        self._calls += 1
        number = self._calls
        clients = {to.client.number for to in self._receivers(self._interest.match(inbox))}
        for client in clients:
            self._departure_calls.setdefault(client, {})[number] = call

        def cancel() -> None:
            for client in clients:
                self._departure_calls.get(client, {}).pop(number, None)

        return cancel

    def client_departed(self, client: ConnectedClient) -> None:
        """Notify the observers of a client that it has disconnected."""
        for call in list(self._departure_calls.pop(client.number, {}).values()):
            call()
        self.departures(client.number)

    def send(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> int:
        """Send to all subscribers; returns how many connections received the message."""
        return self._spread(self._interest.match(subject), subject, reply, headers, payload)

    def send_rows(
        self,
        inbox: bytes,
        subjects: Sequence[bytes],
        replies: Sequence[bytes],
        headers: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> int:
        """Send a run to the subscriber of `inbox`, each message under its own subject; returns
        how many messages were received.
        """
        most = 0
        for to in self._receivers(self._interest.match(inbox)):
            most = max(most, to.client.deliver_rows(to, subjects, replies, headers, payloads))
        return most

    def recipients(self, subject: bytes) -> Sequence[Subscription]:
        """The subscriptions that receive the next message of a subject."""
        return self._receivers(self._interest.match(subject))

    def recipients_of_all(self, subjects: Sequence[bytes]) -> Sequence[Subscription] | None:
        """The subscriptions of all these subjects, or None if they differ between subjects."""
        return self._interest.match_all(subjects)

    async def drained(self, inbox: bytes) -> None:
        """Wait until the subscribers of `inbox` have read most of their pending output."""
        for to in self._receivers(self._interest.match(inbox)):
            await to.client.drained()

    def answer(
        self, replies: Sequence[bytes], payloads: Sequence[bytes], confirms: bool = True
    ) -> None:
        """Send many replies, each to its own reply subject; usually all of one connection.

        Answers that confirm something are written only while this broker's lease is valid.
        """
        first = replies[0]
        if replies.count(first) == len(replies):
            self._answer_all(self.recipients(first), first, payloads, confirms)
            return
        to_all = self.recipients_of_all(replies)
        if to_all is not None:
            self._answer_all(to_all, replies, payloads, confirms)
            return
        for reply, text in zip(replies, payloads, strict=True):
            self._answer_all(self.recipients(reply), reply, [text], confirms)

    def _answer_all(
        self,
        recipients: Sequence[Subscription],
        replies: bytes | Sequence[bytes],
        payloads: Sequence[bytes],
        confirms: bool,
    ) -> None:
        for to in recipients:
            if confirms:
                to.client.require_lease()
            to.client.deliver_rows(to, replies, None, None, payloads)

    def _receivers(
        self, matched: Matched, silent: ConnectedClient | None = None
    ) -> Sequence[Subscription]:
        """The receivers of a message: all plain subscriptions and one member of each queue group.

        `silent` is a client that must not receive the message.
        """
        if not matched.queues and silent is None:
            return matched.plain
        if silent is not None:
            self._deliveries += len(matched.plain) + sum(map(len, matched.queues))
        plain = [to for to in matched.plain if to.client is not silent]
        groups: Iterable[Sequence[Subscription]] = matched.queues
        if silent is not None:
            groups = ([to for to in group if to.client is not silent] for group in groups)
        return plain + [random.choice(group) for group in groups if group]  # noqa: S311

    def _spread_run(
        self, receivers: Sequence[Subscription], run: Publishes, sender: ConnectedClient
    ) -> None:
        """Deliver a run of one subject without headers and replies to all subscribers."""
        silent = None if sender.options.echo else sender
        for to in receivers:
            if to.client is not silent:
                to.client.deliver_rows(to, run.subjects[0], None, None, run.payloads)
        self._deliveries += len(receivers) * len(run.payloads)

    def _spread(
        self,
        matched: Matched,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        sender: ConnectedClient | None = None,
    ) -> int:
        silent = sender if sender is not None and not sender.options.echo else None
        receivers = self._receivers(matched, silent)
        for to in receivers:
            to.client.deliver(to, subject, reply, headers, payload)
        self._deliveries += len(receivers)
        return len(receivers)


def _no_target(subject: bytes) -> PublishTarget | None:
    return None


def part(run: Publishes, start: int, stop: int) -> Publishes:
    """The messages of a run from `start` to before `stop`."""
    if start == 0 and stop == len(run.payloads):
        return run
    headers = None if run.headers is None else run.headers[start:stop]
    return Publishes(
        run.subjects[start:stop], run.replies[start:stop], headers, run.payloads[start:stop]
    )


def _bare(run: Publishes) -> bool:
    """Whether no message has headers or a reply subject."""
    return run.headers is None and not any(run.replies)


def _rows(run: Publishes) -> Iterator[tuple[bytes, bytes, bytes]]:
    headers = [b""] * len(run.payloads) if run.headers is None else run.headers
    return zip(run.replies, headers, run.payloads, strict=True)


def _all_acks(subjects: list[bytes]) -> bool:
    return b"\n".join(subjects).count(b"\n" + ACKS) == len(subjects) - 1
