"""Metrics in the text format that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.model.metrics import Histogram, Metric

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


def render(metrics: Iterable[Metric]) -> bytes:
    """All metrics, each with its help and type."""
    return ("\n".join(line for metric in metrics for line in _lines(metric)) + "\n").encode()


def _lines(metric: Metric) -> Iterator[str]:
    histogram = any(isinstance(value, Histogram) for _, value in metric.values)
    yield f"# HELP {metric.name} {_escape(metric.help)}"
    yield f"# TYPE {metric.name} {'histogram' if histogram else metric.kind}"
    for labels, value in metric.values:
        if isinstance(value, Histogram):
            yield from _histogram(metric.name, labels, value)
        else:
            yield f"{metric.name}{_labels(labels)} {_number(value)}"


def _histogram(name: str, labels: dict[str, str], value: Histogram) -> Iterator[str]:
    running = 0
    for bound, count in zip([*value.bounds, float("inf")], value.counts, strict=True):
        running += count
        edge = "+Inf" if bound == float("inf") else _number(bound)
        yield f"{name}_bucket{_labels({**labels, 'le': edge})} {running}"
    yield f"{name}_sum{_labels(labels)} {_number(value.total)}"
    yield f"{name}_count{_labels(labels)} {running}"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label(text: str) -> str:
    return _escape(text).replace('"', '\\"')
