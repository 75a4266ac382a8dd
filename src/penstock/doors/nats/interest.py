"""Who subscribes to what.

What a subject finds is remembered until a subscription that could change it comes or goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.doors.nats.client import Subscription
from penstock.model.subject_tree import SubjectTree, covers, wild

REMEMBERED_MAX: Final = 8192
ACKS: Final = b"$JS.ACK."
INBOX: Final = b"_INBOX."
"""Subjects that begin so are mostly used once: what they share is worth remembering, they are not.
"""
HEARS_ACKS: Final = re.compile(rb"(\*|\$JS)\.(\*|ACK)\.|((\*|\$JS)\.)?>")


class Matched(NamedTuple):
    """Who gets a message: every one of `plain`, and one of each queue group."""

    plain: tuple[Subscription, ...]
    queues: tuple[tuple[Subscription, ...], ...]


NOBODY: Final = Matched((), ())


class Interest:
    """All subscriptions of the door."""

    def __init__(self) -> None:
        self._tree: SubjectTree[Subscription] = SubjectTree()
        self._remembered: dict[bytes, Matched] = {}
        self._inboxes: dict[bytes, Matched] = {}
        """What every subject of so many tokens and one more finds, but for those without wildcards.
        """
        self._gone_calls: dict[bytes, dict[int, Callable[[], None]]] = {}
        self._come_calls: dict[bytes, dict[int, Callable[[], None]]] = {}
        self._calls = 0
        self.count = 0
        self._ack_listeners = 0

    @property
    def hears_acks(self) -> bool:
        """Whether anybody may get what is sent to `$JS.ACK.`; hardly ever."""
        return self._ack_listeners > 0

    def add(self, subscription: Subscription) -> None:
        self._tree.add(subscription.subject, subscription)
        self._forget(subscription)
        self.count += 1
        self._ack_listeners += HEARS_ACKS.match(subscription.subject) is not None
        for waited in self._touched(self._come_calls, subscription):
            _call_all(self._come_calls.pop(waited, {}))

    def remove(self, subscription: Subscription) -> None:
        self._tree.remove(subscription.subject, subscription)
        self._forget(subscription)
        self.count -= 1
        self._ack_listeners -= HEARS_ACKS.match(subscription.subject) is not None
        for watched in self._touched(self._gone_calls, subscription):
            if not self.has(watched):
                _call_all(self._gone_calls.pop(watched, {}))

    def match(self, subject: bytes) -> Matched:
        """Who gets a message of this subject."""
        known = self._remembered.get(subject)
        if known is not None:
            return known
        if subject.startswith(INBOX):
            return self._match_inbox(subject)
        return _remember(self._remembered, subject, self._tree.find(subject))

    def _match_inbox(self, subject: bytes) -> Matched:
        prefix = subject[: subject.rfind(b".") + 1]
        if prefix == subject or self._tree.has_literal(subject):
            return _matched(self._tree.find(subject))
        known = self._inboxes.get(prefix)
        if known is not None:
            return known
        same = self._tree.find_same([subject])
        if same is None:
            return _matched(self._tree.find(subject))
        return _remember(self._inboxes, prefix, same)

    def match_all(self, subjects: Sequence[bytes]) -> tuple[Subscription, ...] | None:
        """Who gets a message of each of these subjects, where it is the same for all and nobody is
        chosen from a group; None where it has to be looked for one by one.
        """
        found = self._tree.find_same(subjects)
        if found is None or any(subscription.queue for subscription in found):
            return None
        return tuple(found)

    def has(self, subject: bytes) -> bool:
        """Whether anybody would get a message of this subject."""
        return self._tree.has_literal(subject) or self.match(subject) is not NOBODY

    def on_gone(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when nobody subscribes to the subject any more; the answer cancels that."""
        return self._watch(self._gone_calls, subject, call)

    def on_come(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when somebody subscribes to the subject; the answer cancels that."""
        return self._watch(self._come_calls, subject, call)

    def _forget(self, subscription: Subscription) -> None:
        if wild(subscription.subject):
            self._remembered.clear()
            self._inboxes.clear()
        else:
            self._remembered.pop(subscription.subject, None)

    def _watch(
        self,
        calls: dict[bytes, dict[int, Callable[[], None]]],
        subject: bytes,
        call: Callable[[], None],
    ) -> Callable[[], None]:
        self._calls += 1
        number = self._calls
        same = calls.setdefault(subject, {})
        same[number] = call

        def cancel() -> None:
            same.pop(number, None)
            if not same and calls.get(subject) is same:
                del calls[subject]

        return cancel

    def _touched(
        self, calls: dict[bytes, dict[int, Callable[[], None]]], subscription: Subscription
    ) -> list[bytes]:
        """Watched subjects that this subscription is about."""
        subject = subscription.subject
        if not calls:
            return []
        if not wild(subject):
            return [subject] if subject in calls else []
        return [watched for watched in calls if covers(subject, watched)]


def _remember(
    remembered: dict[bytes, Matched], subject: bytes, found: list[Subscription]
) -> Matched:
    if len(remembered) >= REMEMBERED_MAX:
        remembered.clear()
    matched = remembered[subject] = _matched(found)
    return matched


def _call_all(calls: dict[int, Callable[[], None]]) -> None:
    while calls:
        # One of them may cancel another.
        calls.pop(next(iter(calls)))()


def _matched(found: list[Subscription]) -> Matched:
    if not found:
        return NOBODY
    queued = [subscription for subscription in found if subscription.queue]
    if not queued:
        return Matched(tuple(found), ())
    queues: dict[bytes, list[Subscription]] = {}
    for subscription in queued:
        queues.setdefault(subscription.queue, []).append(subscription)
    plain = tuple(subscription for subscription in found if not subscription.queue)
    return Matched(plain, tuple(tuple(group) for group in queues.values()))
