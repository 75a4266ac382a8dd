"""What an error of opendal means, in the words of the interface. Pure.

opendal has a class per kind, but `Unexpected` holds both a refusal and a store that is away, and
whether a retry was worth it is lost when the retries are used up; the HTTP status in its text tells
them apart. The text has many lines, with a backtrace; one line of it is kept.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from penstock.objects.interface import ObjectMissing, ObjectStoreError, StoreUnavailable

REASON_CHARS_MAX: Final = 200

_STATUS: Final = re.compile(r"\bstatus: ([0-9]{3})\b")
_CODE: Final = re.compile(r'\b(?:code|reason): "([A-Za-z0-9]+)"')
"""The word of S3 and Azure, and that of GCS."""
_SOURCE: Final = re.compile(r"^Source:\n\s+(.+)$", re.MULTILINE)
_SHORT: Final = re.compile("too little data|content range is invalid")
_NO_STORE: Final = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"}
_NO_GCS_BUCKET: Final = re.compile(
    r'NotFound [^"]* message: "(?:The specified bucket|\{[^B/]*Bucket [-_.a-z0-9]+)'
    r" does not exist\."
)
"""GCS has one word for a missing bucket and a missing object; its sentence tells them apart.

Google's testbench has a sentence of its own, inside another reply.
"""
_DAMAGED_ON_THE_WAY: Final = {
    "BadDigest",
    "Crc64Mismatch",
    "IncompleteBody",
    "InvalidDigest",
    "InvalidPart",
    "MalformedXML",
    "Md5Mismatch",
}
_BUSY: Final = {"408", "429"}
_GONE: Final = "410"
"""GCS has given up an upload in parts that we have not; it takes a new one."""


class Meaning(Enum):
    """What to do about it."""

    MISSING = auto()
    """There is no such object."""
    TAKEN = auto()
    """The name is taken, perhaps by ourselves: the reply to our own write may have been lost."""
    DAMAGED = auto()
    """What was sent did not come through, and the store noticed; send it again."""
    SHORT = auto()
    """The object has not as many bytes as were asked for."""
    REFUSED = auto()
    """It will say the same next time."""
    AWAY = auto()
    """It may work later."""


def meaning(text: str) -> Meaning:
    """What an error with this text stands for; its first word is its kind."""
    kind, code, status = text.partition(" ")[0], _CODE.search(text), _STATUS.search(text)
    if kind == "NotFound":
        no_store = (code and code[1] in _NO_STORE) or _NO_GCS_BUCKET.match(text)
        return Meaning.REFUSED if no_store else Meaning.MISSING
    if kind in ("ConditionNotMatch", "AlreadyExists", "Conflict"):
        return Meaning.TAKEN
    if kind == "RangeNotSatisfied" or _SHORT.search(text):
        return Meaning.SHORT
    if (code and code[1] in _DAMAGED_ON_THE_WAY) or (status and status[1] == _GONE):
        return Meaning.DAMAGED
    if kind in ("Unexpected", "RateLimited"):
        refused = status and status[1].startswith("4") and status[1] not in _BUSY
        return Meaning.REFUSED if refused else Meaning.AWAY
    return Meaning.REFUSED


def reason(text: str) -> str:
    """One line for people: what failed, the store's code or status, the cause below."""
    first = text.partition("\n")[0]
    what = first.partition("=> ")[2].partition(" {")[0] or first
    status, code, source = (pattern.search(text) for pattern in (_STATUS, _CODE, _SOURCE))
    facts = [match[1] for match in (status, code, source) if match]
    return ": ".join(dict.fromkeys([what, *facts]))[:REASON_CHARS_MAX]


class Failure(Exception):
    """A call of opendal failed; carries what it means, and the line for people."""

    def __init__(self, meaning: Meaning, reason: str) -> None:
        super().__init__(reason)
        self.meaning, self.reason = meaning, reason

    def about(self, key: str) -> ObjectStoreError:
        """The error of the interface that says this of an object."""
        if self.meaning is Meaning.MISSING:
            return ObjectMissing(key)
        if self.meaning is Meaning.AWAY:
            return StoreUnavailable(key, self.reason)
        return ObjectStoreError(key, self.reason)
