"""A tree of items by subject pattern, which finds all items whose pattern matches a subject."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, Generic, TypeVar

WILD: Final = (b"*", b">")
_T = TypeVar("_T")


class _Node(Generic[_T]):
    """A node of patterns that begin with the same tokens, `*` and `>` among them."""

    __slots__ = ("children", "here")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[_T]] = {}
        self.here: dict[_T, None] = {}


class SubjectTree(Generic[_T]):
    """Items by pattern. Literal patterns are in a dict, patterns with wildcards in a tree."""

    def __init__(self) -> None:
        self._literal: dict[bytes, dict[_T, None]] = {}
        self._wild: _Node[_T] = _Node()

    def add(self, pattern: bytes, item: _T) -> None:
        if not has_wildcards(pattern):
            self._literal.setdefault(pattern, {})[item] = None
            return
        node = self._wild
        for token in pattern.split(b"."):
            node = node.children.setdefault(token, _Node())
        node.here[item] = None

    def remove(self, pattern: bytes, item: _T) -> None:
        """Remove an item that was added under this pattern; raises KeyError without it."""
        if has_wildcards(pattern):
            self._remove_wild(pattern, item)
            return
        same = self._literal[pattern]
        del same[item]
        if not same:
            del self._literal[pattern]

    def find(self, subject: bytes) -> list[_T]:
        """Items whose pattern matches, literal ones first; no wildcard matches an empty token."""
        found = list(self.literals(subject))
        for group in self.groups(subject):
            found.extend(group)
        return found

    def literals(self, subject: bytes) -> Collection[_T]:
        """Items under exactly this literal pattern."""
        return self._literal.get(subject, ())

    def groups(self, subject: bytes) -> list[dict[_T, None]]:
        """The items of each pattern with wildcards that matches, as the tree itself holds them: a
        pattern keeps its dict as long as it has any item.
        """
        found: list[dict[_T, None]] = []
        if self._wild.children and b"" not in (tokens := subject.split(b".")):
            _walk(self._wild, tokens, found)
        return found

    def find_same(self, subjects: Sequence[bytes]) -> list[_T] | None:
        """The items that match each of many subjects, if these differ only in their last token and
        all match the same items; None if each subject has to be looked up by itself.
        """
        alike = self.subject_alike(subjects)
        return None if alike is None else self.find(alike)

    def subject_alike(self, subjects: Sequence[bytes]) -> bytes | None:
        """A subject that matches the same items as each of many subjects, if these differ only in
        their last token; None if each subject has to be looked up by itself.
        """
        first, joined = subjects[0], b"\n".join([*subjects, b""])
        prefix = first[: first.rfind(b".") + 1]
        below = joined.count(b"\n" + prefix) == len(subjects) - 1
        deeper = joined.count(b".") != prefix.count(b".") * len(subjects)
        if not prefix or not below or deeper or b".\n" in joined:
            return None
        # Items that match a last token which is in no pattern match any last token.
        alike, tokens = prefix + b"\n", prefix[:-1].split(b".")
        possible = set(map(id, _walk_below(self._wild, tokens, 0)))
        same = possible == set(map(id, self.groups(alike)))
        return alike if same and self._literal.keys().isdisjoint(subjects) else None

    def colliding(self, pattern: bytes) -> Iterator[_T]:
        """Items under patterns that match a subject which this pattern matches, too."""
        if not has_wildcards(pattern):
            yield from self.find(pattern)
            return
        for literal, same in self._literal.items():
            if pattern_matches(pattern, literal):
                yield from same
        yield from _collide(self._wild, pattern.split(b"."), 0)

    def has_literal(self, subject: bytes) -> bool:
        """Whether there is an item under exactly this literal pattern."""
        return subject in self._literal

    def _remove_wild(self, pattern: bytes, item: _T) -> None:
        node, path = self._wild, list[tuple[_Node[_T], bytes]]()
        for token in pattern.split(b"."):
            path.append((node, token))
            node = node.children[token]
        del node.here[item]
        for parent, token in reversed(path):
            child = parent.children[token]
            if child.here or child.children:
                break
            del parent.children[token]


def has_wildcards(pattern: bytes) -> bool:
    """Whether a pattern has wildcards. `*` and `>` within a longer token are literal."""
    if b"*" not in pattern and b">" not in pattern:
        return False
    tokens = pattern.split(b".")
    return b"*" in tokens or tokens[-1] == b">"


def pattern_matches(pattern: bytes, subject: bytes) -> bool:
    """Whether a pattern matches a subject."""
    expected, tokens = pattern.split(b"."), subject.split(b".")
    if expected[-1] == b">":
        expected.pop()
        if len(tokens) <= len(expected):
            return False
    elif len(tokens) != len(expected):
        return False
    if b"" in tokens and has_wildcards(pattern):
        return False
    return all(want in (b"*", token) for want, token in zip(expected, tokens, strict=False))


def _walk(root: _Node[_T], tokens: list[bytes], found: list[dict[_T, None]]) -> None:
    """Add the items of each pattern below `root` that matches these tokens."""
    nodes = [root]
    for token in tokens:
        below: list[_Node[_T]] = []
        for node in nodes:
            children = node.children
            if (tail := children.get(b">")) and tail.here:
                found.append(tail.here)
            if any_ := children.get(b"*"):
                below.append(any_)
            if token not in WILD and (child := children.get(token)):
                below.append(child)
        if not below:
            return
        nodes = below
    found.extend(node.here for node in nodes if node.here)


def _collide(node: _Node[_T], tokens: list[bytes], depth: int) -> Iterator[_T]:
    """Items below a node whose patterns match a subject that these tokens match, too."""
    if depth == len(tokens):
        yield from node.here
        return
    token, children = tokens[depth], node.children
    names = list(children) if token in WILD else [token, *WILD]
    for name in names:
        if name not in children:
            continue
        if b">" in (name, token):
            yield from _all_below(children[name])
        else:
            yield from _collide(children[name], tokens, depth + 1)


def _all_below(node: _Node[_T]) -> Iterator[_T]:
    yield from node.here
    for child in node.children.values():
        yield from _all_below(child)


def _walk_below(node: _Node[_T], tokens: list[bytes], depth: int) -> Iterator[dict[_T, None]]:
    """The items of each pattern that matches these tokens with some token more."""
    children = node.children
    if depth == len(tokens):
        yield from (child.here for child in children.values() if child.here)
        return
    if (tail := children.get(b">")) and tail.here:
        yield tail.here
    for token in dict.fromkeys((tokens[depth], b"*")):
        if token in children and token != b">":
            yield from _walk_below(children[token], tokens, depth + 1)
