"""Things found by subject: each lies under a pattern; a subject finds all that fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeVar

WILD: Final = (b"*", b">")
_T = TypeVar("_T")


class _Node(Generic[_T]):
    """What lies below a number of tokens; `*` and `>` are tokens like others here."""

    __slots__ = ("children", "here")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[_T]] = {}
        self.here: dict[_T, None] = {}


class SubjectTree(Generic[_T]):
    """Patterns without wildcards are found by one look, the others by a walk along the tokens."""

    def __init__(self) -> None:
        self._literal: dict[bytes, dict[_T, None]] = {}
        self._wild: _Node[_T] = _Node()

    def add(self, pattern: bytes, item: _T) -> None:
        if not wild(pattern):
            self._literal.setdefault(pattern, {})[item] = None
            return
        node = self._wild
        for token in pattern.split(b"."):
            node = node.children.setdefault(token, _Node())
        node.here[item] = None

    def remove(self, pattern: bytes, item: _T) -> None:
        """Take out what was added; raises KeyError when it was not."""
        if wild(pattern):
            self._remove_wild(pattern, item)
            return
        same = self._literal[pattern]
        del same[item]
        if not same:
            del self._literal[pattern]

    def find(self, subject: bytes) -> list[_T]:
        """All whose pattern fits, those without wildcards first; an empty token fits none."""
        found = list(self._literal.get(subject, ()))
        if self._wild.children and b"" not in (tokens := subject.split(b".")):
            _walk(self._wild, tokens, found)
        return found

    def find_same(self, subjects: Sequence[bytes]) -> list[_T] | None:
        """What each of many subjects finds, where they differ in their last token only and all find
        the same; None where it has to be looked for one by one.
        """
        first, joined = subjects[0], b"\n".join([*subjects, b""])
        prefix = first[: first.rfind(b".") + 1]
        behind = joined.count(b"\n" + prefix) == len(subjects) - 1
        deeper = joined.count(b".") != prefix.count(b".") * len(subjects)
        if not prefix or not behind or deeper or b".\n" in joined:
            return None
        # What a last token that is in no pattern finds, any other finds too.
        found, tokens = self.find(prefix + b"\n"), prefix[:-1].split(b".")
        same = set(_walk_below(self._wild, tokens, 0)) == set(found)
        return found if same and self._literal.keys().isdisjoint(subjects) else None

    def colliding(self, pattern: bytes) -> Iterator[_T]:
        """All under patterns that have a subject in common with this one."""
        if not wild(pattern):
            yield from self.find(pattern)
            return
        for literal, same in self._literal.items():
            if covers(pattern, literal):
                yield from same
        yield from _collide(self._wild, pattern.split(b"."), 0)

    def has_literal(self, subject: bytes) -> bool:
        """Whether something lies under exactly this."""
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


def wild(pattern: bytes) -> bool:
    """Whether it has wildcards; as a part of a token they are none."""
    if b"*" not in pattern and b">" not in pattern:
        return False
    tokens = pattern.split(b".")
    return b"*" in tokens or tokens[-1] == b">"


def covers(pattern: bytes, subject: bytes) -> bool:
    """Whether a subject fits a pattern."""
    wanted, tokens = pattern.split(b"."), subject.split(b".")
    if wanted[-1] == b">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
    elif len(tokens) != len(wanted):
        return False
    if b"" in tokens and wild(pattern):
        return False
    return all(want in (b"*", token) for want, token in zip(wanted, tokens, strict=False))


def _walk(root: _Node[_T], tokens: list[bytes], found: list[_T]) -> None:
    """Add all that lies under patterns that fit."""
    nodes = [root]
    for token in tokens:
        below: list[_Node[_T]] = []
        for node in nodes:
            children = node.children
            if rest := children.get(b">"):
                found.extend(rest.here)
            if any_ := children.get(b"*"):
                below.append(any_)
            if token not in WILD and (child := children.get(token)):
                below.append(child)
        if not below:
            return
        nodes = below
    for node in nodes:
        found.extend(node.here)


def _collide(node: _Node[_T], tokens: list[bytes], depth: int) -> Iterator[_T]:
    """What lies below a node under patterns that have a subject in common with these tokens."""
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


def _walk_below(node: _Node[_T], tokens: list[bytes], depth: int) -> Iterator[_T]:
    """All that some subject of one token more may find."""
    children = node.children
    if depth == len(tokens):
        for child in children.values():
            yield from child.here
        return
    if rest := children.get(b">"):
        yield from rest.here
    for token in dict.fromkeys((tokens[depth], b"*")):
        if token in children and token != b">":
            yield from _walk_below(children[token], tokens, depth + 1)
