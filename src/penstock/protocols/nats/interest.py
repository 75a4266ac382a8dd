"""The subscriptions of the server, looked up by subject.

The result of a lookup is cached until a subscription that could change it is added or removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from penstock.model.subject_tree import SubjectTree, has_wildcards, pattern_matches
from penstock.protocols.nats.client import Subscription
from penstock.protocols.nats.lookups import (
    JOINED_PER_VISIT,
    NOBODY,
    Arranged,
    Matched,
    Results,
    arrange,
    join,
)

ACKS: Final = b"$JS.ACK."
INBOX: Final = b"_INBOX."
"""Most inbox subjects are used once, so results are cached by their common prefix."""
_WILDCARD: Final = re.compile(rb"[*>]")
HEARS_ACKS: Final = re.compile(rb"(\*|\$JS)\.(\*|ACK)\.|((\*|\$JS)\.)?>")
ARRANGED_AGAIN_MAX: Final = 16
"""Patterns with up to this many subscriptions are arranged again for each lookup."""
_NONE: Final = Arranged((), {})


class Interest:
    """All subscriptions of the server."""

    def __init__(self) -> None:
        self._tree: SubjectTree[Subscription] = SubjectTree()
        self._results, self._inbox_results = Results(), Results()
        """Inbox results are cached by prefix; they hold for subjects with one more token that no
        subscription names without wildcards.
        """
        self._arranged: dict[int, Arranged] = {}
        """Arranged subscriptions by the identity of a pattern's group, until a pattern changes."""
        self.visited = 0
        """The number of subscriptions that lookups visited; cached results cost none."""
        self._no_interest_calls: dict[bytes, dict[int, Callable[[], None]]] = {}
        self._interest_calls: dict[bytes, dict[int, Callable[[], None]]] = {}
        self._calls = 0
        self.count = 0
        self._ack_listeners = 0

    @property
    def hears_acks(self) -> bool:
        """Whether a subscription may match subjects below `$JS.ACK.`, which is rare."""
        return self._ack_listeners > 0

    def add(self, subscription: Subscription) -> None:
        self._tree.add(subscription.subject, subscription)
        self._forget(subscription)
        self.count += 1
        self._ack_listeners += HEARS_ACKS.match(subscription.subject) is not None
        for subject in self._watched(self._interest_calls, subscription):
            _call_all(self._interest_calls.pop(subject, {}))

    def remove(self, subscription: Subscription) -> None:
        self._tree.remove(subscription.subject, subscription)
        self._forget(subscription)
        self.count -= 1
        self._ack_listeners -= HEARS_ACKS.match(subscription.subject) is not None
        self._call_if_no_interest(self._watched(self._no_interest_calls, subscription))

    def remove_all(self, subscriptions: Collection[Subscription]) -> None:
        """Remove all subscriptions of a client that disconnects, possibly very many."""
        remove, forget = self._tree.remove, self._results.pop
        for subscription in subscriptions:
            remove(subscription.subject, subscription)
            forget(subscription.subject, None)
        self.count -= len(subscriptions)
        if any(has_wildcards(subscription.subject) for subscription in subscriptions):
            self._forget_patterns()
        if self._ack_listeners:
            matches = (HEARS_ACKS.match(subscription.subject) for subscription in subscriptions)
            self._ack_listeners -= sum(match is not None for match in matches)
        if self._no_interest_calls:
            removed: SubjectTree[Subscription] = SubjectTree()
            for subscription in subscriptions:
                removed.add(subscription.subject, subscription)
            self._call_if_no_interest(
                [watched for watched in self._no_interest_calls if removed.find(watched)]
            )

    def _call_if_no_interest(self, subjects: Iterable[bytes]) -> None:
        """Call the watchers of those subjects that have lost their last subscription."""
        for watched in subjects:
            if not self.has(watched):
                _call_all(self._no_interest_calls.pop(watched, {}))

    def match(self, subject: bytes) -> Matched:
        """The subscriptions that match a subject."""
        cached = self._results.get(subject)
        if cached is not None:
            return cached
        if subject.startswith(INBOX):
            return self._match_inbox(subject)
        arranged = self._find(subject)
        self._results.add(subject, arranged)
        return arranged.matched

    def _match_inbox(self, subject: bytes) -> Matched:
        prefix = subject[: subject.rfind(b".") + 1]
        if prefix == subject or self._tree.has_literal(subject):
            return self._find(subject).matched
        cached = self._inbox_results.get(prefix)
        if cached is not None:
            return cached
        arranged = self._find(subject)
        if self._tree.subject_alike([subject]) is not None:
            self._inbox_results.add(prefix, arranged)
        return arranged.matched

    def match_all(self, subjects: Sequence[bytes]) -> tuple[Subscription, ...] | None:
        """The subscriptions that receive a message of each of these subjects.

        None if they differ between subjects or have queue groups, and so must be looked up for
        each subject.
        """
        alike = self._tree.subject_alike(subjects)
        if alike is None:
            return None
        matched = self._find(alike).matched
        return None if matched.queues else matched.plain

    def has(self, subject: bytes) -> bool:
        """Whether a subscription matches the subject."""
        return self._tree.has_literal(subject) or self.match(subject) is not NOBODY

    def on_no_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when the last subscription of the subject ends; returns a cancel function."""
        return self._watch(self._no_interest_calls, subject, call)

    def on_interest(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when a client subscribes to the subject; returns a cancel function."""
        return self._watch(self._interest_calls, subject, call)

    def _find(self, subject: bytes) -> Arranged:
        parts = list(map(self._arrange, self._tree.groups(subject)))
        if literals := self._tree.literals(subject):
            parts.append(arrange(literals))
            self.visited += len(literals)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return _NONE
        joined = join(parts)
        self.visited += len(parts) + joined.size // JOINED_PER_VISIT
        return joined

    def _arrange(self, group: dict[Subscription, None]) -> Arranged:
        arranged = self._arranged.get(id(group))
        if arranged is None:
            arranged = arrange(group)
            self.visited += len(group)
            if len(group) > ARRANGED_AGAIN_MAX:
                self._arranged[id(group)] = arranged
        return arranged

    def _forget_patterns(self) -> None:
        self._results.clear()
        self._inbox_results.clear()
        self._arranged.clear()

    def _forget(self, subscription: Subscription) -> None:
        if has_wildcards(subscription.subject):
            self._forget_patterns()
        else:
            self._results.pop(subscription.subject, None)

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

    def _watched(
        self, calls: dict[bytes, dict[int, Callable[[], None]]], subscription: Subscription
    ) -> list[bytes]:
        """The watched subjects that a subscription matches."""
        subject = subscription.subject
        if not calls:
            return []
        if not has_wildcards(subject):
            return [subject] if subject in calls else []
        # The tokens before the first wildcard exclude most watched subjects.
        start = _WILDCARD.split(subject, 1)[0]
        return [
            watched
            for watched in calls
            if watched.startswith(start) and pattern_matches(subject, watched)
        ]


def _call_all(calls: dict[int, Callable[[], None]]) -> None:
    while calls:
        # A call may cancel another one.
        calls.pop(next(iter(calls)))()
