"""The reader of queries finds exactly the metrics, so that the dashboard's test can fail."""

import pytest

from tests.architecture.promql import metric_names


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("up", {"up"}),
        ('sum(rate(a:b_total{model_name=~"$model_name"}[$__rate_interval]))', {"a:b_total"}),
        ("histogram_quantile(0.99, sum by (le, handler) (rate(x_bucket[5m])))", {"x_bucket"}),
        ("sum(a_total) / sum(b_total)", {"a_total", "b_total"}),
        ("max(a) by (job) > 3 and b offset 5m", {"a", "b"}),
    ],
)
def test_only_metrics_are_found(query: str, names: set[str]) -> None:
    assert metric_names(query) == names
