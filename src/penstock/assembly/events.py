"""Logging of the broker: structured events on standard error, as JSON lines or text.

Events of Penstock (structlog) and of libraries (logging) have the same form. No line contains a
secret of the configuration, not even within a traceback.
"""

import json
import logging
import sys
from collections.abc import Sequence
from typing import Final

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from penstock.config import SECRET_SHOWN

_SHARED: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
)


def configure_events(level: str, form: str, secrets: Sequence[str]) -> None:
    """Log events of `level` and above to standard error; `form` is `json` or `text`."""
    number = logging.getLevelNamesMapping()[level.upper()]
    rendered: list[Processor] = [*_renderers(form), _Redact(secrets)]
    structlog.configure(
        processors=[*_SHARED, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)


def _renderers(form: str) -> list[Processor]:
    if form == "json":
        return [structlog.processors.format_exc_info, _leading, structlog.processors.JSONRenderer()]
    # Plain tracebacks, as rich ones print local variables.
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,
            timestamp_key="time",
        )
    ]


def _leading(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Put the keys that every event has first, so that lines are easy to read."""
    return {key: event.pop(key) for key in ("time", "level", "event")} | dict(event)


def _quoted_forms(secret: str) -> tuple[str, str, str]:
    return secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]


class _Redact:
    """The last processor: removes every secret from the line, in each form of quoting."""

    def __init__(self, secrets: Sequence[str]) -> None:
        quoted = {form for text in secrets for form in _quoted_forms(text)}
        # Longest first, or a secret within another would leave a part of that one.
        self._forms = sorted(quoted, key=len, reverse=True)

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        line = str(event)
        for form in self._forms:
            line = line.replace(form, SECRET_SHOWN)
        return line
