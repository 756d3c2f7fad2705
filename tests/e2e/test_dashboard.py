"""Each query of the Grafana dashboard finds its series on a live server's /metrics page."""

import json
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.architecture.promql import dashboard_queries, metric_names

if TYPE_CHECKING:
    from tests.live_servers import Server

DASHBOARD = Path(__file__).resolve().parents[2] / "configs" / "grafana" / "dashboard.json"
QUERIES = dashboard_queries(json.loads(DASHBOARD.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def scraped(live_server: "Server") -> dict[str, list[str]]:
    """Label sets by series name, from one scrape."""
    with urllib.request.urlopen(live_server.base_url + "/metrics", timeout=30) as answer:
        page = answer.read().decode()
    series: dict[str, list[str]] = {}
    for line in page.splitlines():
        match = re.match(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? \S+", line)
        if match and not line.startswith("#"):
            series.setdefault(match[1], []).append(match[2] or "")
    return series


@pytest.mark.parametrize("query", QUERIES)
def test_query_finds_series(query: str, scraped: dict[str, list[str]]) -> None:
    names = metric_names(query)
    assert names
    for name in names:
        assert scraped.get(name), name
    if "model_name" in query:
        assert all("model_name=" in labels for name in names for labels in scraped[name])


def test_grouping_labels_exist(scraped: dict[str, list[str]]) -> None:
    for query in QUERIES:
        wanted = [
            word.strip() for by in re.findall(r"by \(([^)]*)\)", query) for word in by.split(",")
        ]
        for name in metric_names(query):
            for label in wanted:
                assert all(f'{label}="' in labels for labels in scraped[name]), (query, label)
