"""The subscriptions of the server, looked up by subject.

What a subject finds is remembered until a subscription that could change it comes or goes.
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
"""Inbox subjects are mostly used once, so results are cached by their common prefix."""
_WILDCARD: Final = re.compile(rb"[*>]")
HEARS_ACKS: Final = re.compile(rb"(\*|\$JS)\.(\*|ACK)\.|((\*|\$JS)\.)?>")
ARRANGED_AGAIN_MAX: Final = 16
"""Patterns with up to this many subscriptions are arranged again for each lookup."""
_NONE: Final = Arranged((), {})


class Interest:
    """All subscriptions of the server."""

    def __init__(self) -> None:
        self._tree: SubjectTree[Subscription] = SubjectTree()
        self._remembered, self._inboxes = Results(), Results()
        """In `_inboxes`, what every subject of so many tokens and one more finds, but for those
        without wildcards.
        """
        self._arranged: dict[int, Arranged] = {}
        """Arranged subscriptions by the identity of a pattern's group, until a pattern changes."""
        self.visited = 0
        """The number of subscriptions that lookups visited; cached results cost none."""
        self._gone_calls: dict[bytes, dict[int, Callable[[], None]]] = {}
        self._come_calls: dict[bytes, dict[int, Callable[[], None]]] = {}
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
        for waited in self._touched(self._come_calls, subscription):
            _call_all(self._come_calls.pop(waited, {}))

    def remove(self, subscription: Subscription) -> None:
        self._tree.remove(subscription.subject, subscription)
        self._forget(subscription)
        self.count -= 1
        self._ack_listeners -= HEARS_ACKS.match(subscription.subject) is not None
        self._call_gone(self._touched(self._gone_calls, subscription))

    def remove_all(self, subscriptions: Collection[Subscription]) -> None:
        """Remove all subscriptions of a client that disconnects, possibly very many."""
        remove, forget = self._tree.remove, self._remembered.pop
        for subscription in subscriptions:
            remove(subscription.subject, subscription)
            forget(subscription.subject, None)
        self.count -= len(subscriptions)
        patterns = [one for one in subscriptions if has_wildcards(one.subject)]
        if patterns:
            self._forget_patterns()
        if self._ack_listeners:
            heard = (HEARS_ACKS.match(one.subject) for one in subscriptions)
            self._ack_listeners -= sum(found is not None for found in heard)
        if self._gone_calls:
            removed: SubjectTree[Subscription] = SubjectTree()
            for subscription in subscriptions:
                removed.add(subscription.subject, subscription)
            self._call_gone([watched for watched in self._gone_calls if removed.find(watched)])

    def _call_gone(self, subjects: Iterable[bytes]) -> None:
        """Call the watchers of those subjects that have lost their last subscription."""
        for watched in subjects:
            if not self.has(watched):
                _call_all(self._gone_calls.pop(watched, {}))

    def match(self, subject: bytes) -> Matched:
        """The subscriptions that match a subject."""
        known = self._remembered.get(subject)
        if known is not None:
            return known
        if subject.startswith(INBOX):
            return self._match_inbox(subject)
        found = self._find(subject)
        self._remembered.remember(subject, found)
        return found.matched

    def _match_inbox(self, subject: bytes) -> Matched:
        prefix = subject[: subject.rfind(b".") + 1]
        if prefix == subject or self._tree.has_literal(subject):
            return self._find(subject).matched
        known = self._inboxes.get(prefix)
        if known is not None:
            return known
        found = self._find(subject)
        if self._tree.subject_alike([subject]) is not None:
            self._inboxes.remember(prefix, found)
        return found.matched

    def match_all(self, subjects: Sequence[bytes]) -> tuple[Subscription, ...] | None:
        """Who gets a message of each of these subjects, where it is the same for all and nobody is
        chosen from a group; None where it has to be looked for one by one.
        """
        alike = self._tree.subject_alike(subjects)
        if alike is None:
            return None
        matched = self._find(alike).matched
        return None if matched.queues else matched.plain

    def has(self, subject: bytes) -> bool:
        """Whether a subscription matches the subject."""
        return self._tree.has_literal(subject) or self.match(subject) is not NOBODY

    def on_gone(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when the last subscription of the subject ends; returns a cancel function."""
        return self._watch(self._gone_calls, subject, call)

    def on_come(self, subject: bytes, call: Callable[[], None]) -> Callable[[], None]:
        """Call once when a client subscribes to the subject; returns a cancel function."""
        return self._watch(self._come_calls, subject, call)

    def _find(self, subject: bytes) -> Arranged:
        parts = list(map(self._arrange, self._tree.groups(subject)))
        if literals := self._tree.literals(subject):
            parts.append(arrange(literals))
            self.visited += len(literals)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return _NONE
        found = join(parts)
        self.visited += len(parts) + found.size // JOINED_PER_VISIT
        return found

    def _arrange(self, group: dict[Subscription, None]) -> Arranged:
        known = self._arranged.get(id(group))
        if known is None:
            known = arrange(group)
            self.visited += len(group)
            if len(group) > ARRANGED_AGAIN_MAX:
                self._arranged[id(group)] = known
        return known

    def _forget_patterns(self) -> None:
        self._remembered.clear()
        self._inboxes.clear()
        self._arranged.clear()

    def _forget(self, subscription: Subscription) -> None:
        if has_wildcards(subscription.subject):
            self._forget_patterns()
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
        """The watched subjects that a subscription matches."""
        subject = subscription.subject
        if not calls:
            return []
        if not has_wildcards(subject):
            return [subject] if subject in calls else []
        # The tokens before the first wildcard exclude most watched subjects.
        start = _WILDCARD.split(subject, 1)[0]
        return [one for one in calls if one.startswith(start) and pattern_matches(subject, one)]


def _call_all(calls: dict[int, Callable[[], None]]) -> None:
    while calls:
        # A call may cancel another one.
        calls.pop(next(iter(calls)))()
