"""Live servers' /metrics: every query of the dashboard finds its series, and the numbers agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.architecture.promql import dashboard_queries, metric_names
from tests.live_servers import Server, start_scripted, stop, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

DASHBOARD = Path(__file__).resolve().parents[2] / "configs" / "grafana" / "dashboard.json"
QUERIES = dashboard_queries(json.loads(DASHBOARD.read_text(encoding="utf-8")))
TWO_LAYERS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
PROMPT_LENGTHS = (300, 1500, 800)


@pytest.fixture(scope="module")
def pipeline_server(
    tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path
) -> Iterator[Server]:
    """Two stages with dynamic chunking that have served a few prompts, one after the other."""
    directory = tmp_path_factory.mktemp("two-layers")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    server = start_scripted(directory, smollm2_gguf, "--enable-dynamic-chunking", **TWO_LAYERS)
    url = server.base_url + "/v1/completions"
    for index, length in enumerate(PROMPT_LENGTHS):
        prompt = [100 + index] * length
        body = {"prompt": prompt, "max_tokens": 4, "vllm_xargs": {"script": [5, 6, 7, 8]}}
        assert httpx.post(url, json=body, timeout=60).is_success
    wait_until(
        lambda: server.metric("atom_lite:dynamic_chunk_tokens_sum") >= sum(PROMPT_LENGTHS),
        10,
        "the last chunks are counted",
    )
    yield server
    stop(server)


@pytest.fixture(scope="module", params=["live_server", "pipeline_server"])
def scraped(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """Label sets by series name, from one scrape of a default and of a pipelined server."""
    server: Server = request.getfixturevalue(request.param)
    series: dict[str, list[str]] = {}
    for line in httpx.get(server.base_url + "/metrics", timeout=30).text.splitlines():
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


def test_chunks_are_counted_once_by_size_and_reason(pipeline_server: Server) -> None:
    metric = pipeline_server.metric
    assert metric("atom_lite:dynamic_chunk_tokens_sum") == sum(PROMPT_LENGTHS)
    assert metric("atom_lite:dynamic_chunk_tokens_sum") == metric(
        "atom_lite:prompt_tokens_computed_total"
    )
    chunks = metric("atom_lite:dynamic_chunks_total")
    assert chunks > len(PROMPT_LENGTHS)
    assert metric("atom_lite:dynamic_chunk_tokens_count") == chunks
    assert metric("atom_lite:dynamic_chunk_tokens_bucket", le="+Inf") == chunks
    assert metric("atom_lite:calibration_state") == 1


def test_busy_and_bubble_add_up_to_the_same_time_on_every_stage(pipeline_server: Server) -> None:
    totals = []
    for stage in ("0", "1"):
        busy = pipeline_server.metric("atom_lite:stage_busy_seconds_total", stage=stage)
        bubble = pipeline_server.metric("atom_lite:stage_bubble_seconds_total", stage=stage)
        assert busy > 0
        assert bubble > 0
        totals.append(busy + bubble)
    # Exact once the pipeline is empty, but for what a counter may be ahead (see occupancy.py).
    assert totals[0] == pytest.approx(totals[1], rel=0.25)


def test_server_info_tells_what_the_metrics_tell(pipeline_server: Server) -> None:
    stats = httpx.get(pipeline_server.base_url + "/server_info").json()["stats"]
    chunking = stats["chunking"]
    assert chunking["policy"] == "makespan"
    assert chunking["state"] in ("collecting", "installed", "drifting")
    assert chunking["reason"]
    assert sum(chunking["chunk_tokens_by_reason"].values()) == sum(PROMPT_LENGTHS)
    assert len(stats["stage_busy_seconds"]) == len(stats["stage_bubble_seconds"]) == 2
    assert {"fits", "coefficients", "last_plan", "last_plan_seconds"} <= chunking.keys()
