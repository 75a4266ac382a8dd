"""Decides which messages may enter the topic of a channel, over whatever protocol they come.

Every message must be within the limits of headers.py. Where a gateway signs broadcasts, the topic
takes nothing else: an unsigned publish would create jobs past the gateway. The open topic asks
before every append, once for each run; only topics of channels have a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow.compute as pc

from penstock.delivery.channels.headers import ID_CHARACTERS_MAX, excess
from penstock.model.columns import Columns
from penstock.model.errors import RunInvalid, SignatureRequired
from penstock.model.run import ColumnRun, Origin, Run
from penstock.topics import OpenTopic


def guard(opened: OpenTopic, signed_only: bool) -> Callable[[], None]:
    """Apply the rules of channels to a topic; returns the function that ends this."""
    opened.signed_only = signed_only
    return opened.add_admission(_ChannelRules(opened.topic.name.full, signed_only))


@dataclass(frozen=True)
class _ChannelRules:
    """Admits what may enter the topic of a channel."""

    topic: str
    signed_only: bool

    def __call__(self, run: Run | ColumnRun, origin: Origin) -> None:
        """Raises SignatureRequired or RunInvalid."""
        if origin is Origin.BROKER:
            return
        if self.signed_only:
            raise SignatureRequired(self.topic)
        for block in _long_blocks(run):
            if (reason := excess(block)) is not None:
                raise RunInvalid(f"topic {self.topic} is a channel: {reason}")


def _long_blocks(run: Run | ColumnRun) -> Iterable[bytes]:
    """The header blocks of a run that may exceed a limit: most runs have none."""
    if isinstance(run, Run):
        headers = run.headers or ()
        return [block for block in headers if len(block) > ID_CHARACTERS_MAX]
    if not isinstance(run.content, Columns) or run.content.headers is None:
        return ()
    column = run.content.headers
    long = pc.greater(pc.binary_length(column), ID_CHARACTERS_MAX)
    blocks: list[bytes] = column.filter(long).to_pylist()
    return blocks
