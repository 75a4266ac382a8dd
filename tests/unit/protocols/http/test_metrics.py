"""The text format of metrics, compared whole."""

from penstock.model.metrics import Histogram, Metric, single
from penstock.protocols.http.metrics import render


def test_labels_are_quoted_and_escaped() -> None:
    metric = Metric("m", "counter", "a\nb", [({"topic": 'a"b\\c'}, 2.5), ({"topic": "d"}, 3)])
    assert render([metric]) == (
        b'# HELP m a\\nb\n# TYPE m counter\nm{topic="a\\"b\\\\c"} 2.5\nm{topic="d"} 3\n'
    )


def test_a_histogram_is_cumulative_and_ends_with_infinity() -> None:
    histogram = Histogram((1, 10))
    for value in (0.5, 1, 5, 100):
        histogram.observe(value)
    assert render([single("h", "histogram", "H.", histogram)]).decode().splitlines() == [
        "# HELP h H.",
        "# TYPE h histogram",
        'h_bucket{le="1"} 2',
        'h_bucket{le="10"} 3',
        'h_bucket{le="+Inf"} 4',
        "h_sum 106.5",
        "h_count 4",
    ]
