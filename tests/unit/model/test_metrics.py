from penstock.model.metrics import Metric, single


def test_a_single_figure_has_no_labels() -> None:
    assert single("n", "gauge", "h", 1) == Metric("n", "gauge", "h", [({}, 1)])
