"""What the child tells its parent, one JSON line a fact, as soon as it is true.

The parent's knowledge survives the cut. A promise counts from the moment its line is in the pipe.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock

import msgspec

Place = tuple[str, int]
"""A topic and one of its partitions."""

Id = tuple[int, int]
"""A message: its publisher, and its number with that publisher. Sent once, so it is found once."""


class _Fact(msgspec.Struct, array_like=True):
    pass


class Sending(_Fact, tag="send"):
    """A run is about to be appended: `count` messages of a publisher, numbered from `first`."""

    publisher: int
    first: int
    count: int
    topic: str
    partition: int


class Acked(_Fact, tag="ack"):
    """The run that begins with this message is durable from `offset` on."""

    publisher: int
    first: int
    offset: int


class Read(_Fact, tag="read"):
    """A reader got these messages."""

    topic: str
    partition: int
    offsets: list[int]
    ids: list[Id]


class Creating(_Fact, tag="create"):
    """A topic is about to be made; with `cloud` its acks promise that the bucket has it too."""

    operation: int
    topic: str
    cloud: bool = False


class Deleting(_Fact, tag="delete"):
    """Single messages are about to be deleted."""

    operation: int
    topic: str
    partition: int
    offsets: list[int]


class Purging(_Fact, tag="purge"):
    """Everything before `start` is about to be dropped."""

    operation: int
    topic: str
    partition: int
    start: int


class Settling(_Fact, tag="settle"):
    """A settlement that carries the number of this operation is about to be stored."""

    operation: int
    topic: str


class Done(_Fact, tag="done"):
    """The operation was acknowledged."""

    operation: int


class Ends(_Fact, tag="ends"):
    """Where a partition starts and ends, and how many messages it says it has.

    What is before `files_start` is not in the WAL any more.
    """

    topic: str
    partition: int
    start: int
    next: int
    live: int
    files_start: int = 0


class Settled(_Fact, tag="settled"):
    """Settlements that lie in a topic's files, in order."""

    topic: str
    operations: list[int]


class Manifest(_Fact, tag="manifest"):
    """A manifest as it was on disk before anybody touched it."""

    topic: str
    uploads: int
    """Objects that were ever uploaded."""
    merged: int
    """Objects that were made of several."""
    under_way: int
    """Uploads that had begun and not ended."""
    starts: dict[int, int]
    deleted: dict[int, list[int]]


class Object(_Fact, tag="object"):
    """An object that a manifest names, in the manifest's order, and its rows."""

    topic: str
    key: str
    ranges: list[tuple[int, int, int]]
    """Partition, first offset, and the one behind the last."""
    rows: dict[int, list[tuple[int, Id]]]
    """By partition."""
    problems: list[str]


class Recovered(_Fact, tag="recovered"):
    """Everything that is there has been told; `troubles` is what was found wrong meanwhile."""

    topics: list[str]
    troubles: list[str]


class Writing(_Fact, tag="writing"):
    """Every partition has acknowledged a message since it was recovered."""


class Cutting(_Fact, tag="cutting"):
    """The power is about to be cut, at this step. What is told from here on is no promise.

    In life nobody would hear it; here the process goes on for a moment, and an fdatasync that the
    cut overtakes sometimes returns as if it had succeeded.
    """

    step: str


class Cut(_Fact, tag="cut"):
    """The power is off: what is sent from here on cannot be acknowledged."""


Fact = (
    Sending
    | Acked
    | Read
    | Creating
    | Deleting
    | Purging
    | Settling
    | Done
    | Ends
    | Settled
    | Manifest
    | Object
    | Recovered
    | Writing
    | Cutting
    | Cut
)

Tell = Callable[[Fact], object]
"""Passes a fact on; returns when that is done."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Fact)


class Pipe:
    """The child's end of the pipe; any thread may tell."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = Lock()

    def tell(self, fact: Fact) -> None:
        """In the pipe on return."""
        line = memoryview(_encoder.encode(fact) + b"\n")
        with self._lock:
            while line:
                line = line[os.write(self._fd, line) :]


class Listener:
    """The parent's end: bytes in, facts out; what the last writer did not finish was never said."""

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, data: bytes) -> list[Fact]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [_decoder.decode(line) for line in lines]
