from penstock.model.metrics import Histogram, Metric, single


def test_a_single_metric_has_no_labels() -> None:
    assert single("n", "gauge", "h", 1) == Metric("n", "gauge", "h", [({}, 1)])


def test_a_value_on_a_bound_counts_as_at_most_the_bound() -> None:
    histogram = Histogram((1, 2))
    for value in (1, 1.5, 2, 2.5):
        histogram.observe(value)
    assert (histogram.counts, histogram.total, histogram.count) == ([1, 2, 1], 7.0, 4)
