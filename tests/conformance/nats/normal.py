"""What may differ between two servers and two runs is taken out of their frames: times and ids."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Any, Final

from tests.conformance.nats.wire import Frame

NEVER: Final = "0001-01-01T00:00:00Z"
TIMES: Final = {
    *("created", "ts", "first_ts", "last_ts", "last_active", "time", "timestamp", "pinned_ts"),
}
IDS: Final = {"id", "pinned_client_id", "server_id", "client_id", "port"}
FACTS: Final = {"_nats.ver", "version", "server_name", "host"}
BUILD: Final = {"git_commit", "go", "xkey"}
"""Of nats-server's own build and keys; clients pass over them."""
AMOUNTS: Final = {"pause_remaining", "active", "ack_time", "delay"}
ACK: Final = re.compile(r"(\$JS\.ACK\.\S+?\.\d+\.\d+\.\d+)\.\d{15,}\.(\d+)")
TIME_HEADER: Final = re.compile(r"(Nats-Time-Stamp: )[^|]+")
ID_HEADER: Final = re.compile(r"(Nats-Pin-Id: )[^|]+")
NEXT_HEADER: Final = re.compile(r"(Nats-Schedule-Next: )[0-9-]{10}T[0-9:]{8}")


class Normal:
    """Frames of one session as lines; names that the server makes up are numbered as they come."""

    def __init__(self, script: str) -> None:
        """A name is made up by the server when `script` does not have it."""
        self._script = script
        self.made_up: list[str] = []

    def line(self, frame: Frame) -> str:
        parts = [frame.kind, frame.subject, frame.sid, frame.reply]
        if frame.headers:
            parts.append(f"[{_headers(frame.headers)}]")
        parts.append(self._payload(frame))
        return self._renamed(" ".join(filter(None, parts)))

    def _payload(self, frame: Frame) -> str:
        text = frame.payload.decode(errors="backslashreplace").strip()
        if not text.startswith("{"):
            return text if len(text) < 200 else f"{text[:20]}...({len(text)})"
        try:
            document = json.loads(text)
        except ValueError:
            return text
        self._notice(document)
        return json.dumps(self._plain(document), separators=(",", ":"))

    def _notice(self, document: dict[str, Any]) -> None:
        name = document.get("name")
        is_consumer = "consumer_" in str(document.get("type"))
        if is_consumer and name and name not in self._script and name not in self.made_up:
            self.made_up.append(name)

    def _renamed(self, line: str) -> str:
        line = ACK.sub(r"\1.<time>.\2", line)
        for number, name in enumerate(self.made_up, 1):
            line = re.sub(rf"\b{re.escape(name)}\b", f"<name {number}>", line)
        return line

    def _plain(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            if key == "api":
                return dict.fromkeys(value, "<count>")
            kept = {name: item for name, item in value.items() if name not in BUILD}
            return {name: self._plain(item, name) for name, item in kept.items()}
        if isinstance(value, list):
            return self._list([self._plain(item) for item in value])
        return _plain(value, key)

    def _list(self, items: list[Any]) -> list[Any]:
        """Names in their order, where those that were made up stand first."""
        return sorted(items, key=lambda item: item not in self.made_up)


def _headers(block: bytes) -> str:
    text = block.decode(errors="backslashreplace").rstrip("\r\n").replace("\r\n", " | ")
    for pattern, what in ((TIME_HEADER, "time"), (NEXT_HEADER, "time"), (ID_HEADER, "id")):
        text = pattern.sub(rf"\1<{what}>", text)
    return text


def _plain(value: Any, key: str) -> Any:
    if key == "hdrs":
        return _headers(b64decode(value))
    if key in TIMES and value != NEVER:
        return "<time>"
    if key in IDS:
        return "<id>"
    if key in FACTS:
        return "<fact>"
    if key in AMOUNTS and value != -1:
        return "<amount>"
    return value
