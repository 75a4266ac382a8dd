"""A stream that this broker serves, with the workers that its configuration requires."""

from __future__ import annotations

from typing import Final

import structlog

from penstock.host.clock import Clock
from penstock.streams.answers import Answer
from penstock.streams.appender import Appender
from penstock.streams.expiry import Expiry
from penstock.streams.following import Mirror, OriginOf
from penstock.streams.message_ids import DuplicateWindow, MessageIds
from penstock.streams.open_batches import OpenBatches
from penstock.streams.publisher import Publisher
from penstock.streams.republish import Republisher, Send
from penstock.streams.schedules import Schedules
from penstock.streams.source_positions import KIND
from penstock.streams.sources import Sources
from penstock.streams.stream import Stream

NANOSECONDS: Final = 1000
"""Nanoseconds per microsecond."""
_events = structlog.get_logger(__name__)


class ServedStream:
    """A stream and the objects that work on it."""

    def __init__(
        self, stream: Stream, clock: Clock, answer: Answer, open_batches: OpenBatches
    ) -> None:
        self.stream, self._clock = stream, clock
        self.expiry = Expiry(stream, clock)
        self.window = DuplicateWindow(stream.config.duplicate_window // NANOSECONDS, clock.now_us)
        self.message_ids = MessageIds(stream, self.window, clock)
        self.publisher = Publisher(stream, self.window, answer, open_batches)
        self.schedules = Schedules(stream, Appender(stream, self.window), clock)
        self.mirror: Mirror | None = None
        self.sources: Sources | None = None
        self.republisher: Republisher | None = None

    def stop(self) -> None:
        self.expiry.stop()
        self.schedules.stop()
        self.publisher.stop()
        if self.mirror is not None:
            self.mirror.stop()
            self.mirror = None
        if self.sources is not None:
            self.sources.stop()
            self.sources = None
        if self.republisher is not None:
            self.republisher.stop()
            self.republisher = None

    def apply_config(self) -> None:
        """Apply another configuration of the stream."""
        self.window.window_us = self.stream.config.duplicate_window // NANOSECONDS
        self.publisher.apply_config()
        self.expiry.start()
        self.schedules.start()

    def update_republisher(self, send: Send) -> None:
        """Start or stop republishing, as the configuration says."""
        if self.republisher is not None:
            self.republisher.stop()
            self.republisher = None
        config = self.stream.config.republish
        if config is not None:
            self.republisher = Republisher(self.stream, config, send)

    def update_mirror(self, origin_of: OriginOf) -> None:
        """Start or stop mirroring, as the configuration says."""
        source = self.stream.config.mirror
        if source is None and self.mirror is not None:
            self.mirror.stop()
            self.mirror = None
        elif source is not None and self.mirror is None:
            self.mirror = Mirror(self.stream, source, origin_of, self._clock)
            self.mirror.start()

    def update_sources(self, origin_of: OriginOf, *, begin: bool) -> None:
        """Configure the sources that the configuration names; with `begin`, start to copy at
        once.
        """
        stream = self.stream
        if not stream.config.sources:
            stream.opened.settlements.unused.add(KIND)
            if self.sources is not None:
                self.sources.remove()
                self.sources = None
            return
        if self.sources is None:
            self.sources = Sources(stream, self.window, origin_of, self._clock)
        self.sources.configure()
        if begin:
            self.sources.load_soon()
