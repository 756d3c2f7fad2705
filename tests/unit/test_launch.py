"""What the launcher decides before and beside its processes; the processes are in tests/e2e."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atom_lite import launch
from atom_lite.config import CacheConfig, Config, ModelConfig, ParallelConfig, ServerConfig
from atom_lite.errors import ConfigError
from atom_lite.models.checkpoint import Checkpoint
from tests.fakes.fake_engine import engine_ready

LOCAL = Checkpoint(path=Path("model.gguf"), kind="gguf", name="model")


@pytest.mark.parametrize("host", ["a" * 70, "..", "no such host", "256.0.0.1"])
def test_a_host_that_is_none_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        launch.serve(Config(server=ServerConfig(host=host, port=0)))


@pytest.mark.parametrize("template", ["no-such-file.jinja", "{% for %}", "a\0b"])
def test_a_template_that_is_none_is_told_before_anything_is_loaded(template: str) -> None:
    config = Config(model=ModelConfig(model="/no/such/model", chat_template=template))
    with pytest.raises(ConfigError, match="template"):
        launch.serve(config)


@pytest.mark.parametrize("node_rank", [0, 1])
@pytest.mark.parametrize("address", ["a" * 70, "..", "no such host"])
def test_an_address_of_the_head_that_means_nothing_is_named_at_once(
    address: str, node_rank: int
) -> None:
    parallel = ParallelConfig(
        nnodes=2, node_rank=node_rank, master_addr=address, pipeline_parallel_size=2
    )
    with pytest.raises(ConfigError, match=f"--master-addr {re.escape(address)}: "):
        launch.serve(Config(parallel=parallel))


@pytest.mark.parametrize(
    ("cache", "device", "named"),
    [
        ({}, "cpu", []),
        ({"gpu_memory_utilization": 0.5}, "cuda:0", []),
        ({"kv_cache_memory_bytes": 1}, "cpu", []),
        ({"gpu_memory_utilization": 0.5}, "cpu", ["--gpu-memory-utilization"]),
        (
            {"gpu_memory_utilization": 0.5, "num_gpu_blocks_override": 9},
            "cuda:0",
            ["--gpu-memory-utilization"],
        ),
        (
            {"kv_cache_memory_bytes": 1, "num_gpu_blocks_override": 9},
            "cpu",
            ["--kv-cache-memory-bytes"],
        ),
    ],
)
def test_settings_without_effect_are_told(
    cache: dict[str, Any], device: str, named: list[str]
) -> None:
    config = Config(cache=dataclasses.replace(CacheConfig(), **cache))
    found = launch.ignored_settings(config, engine_ready(device=device), LOCAL)
    assert [reason.split(":")[0] for reason in found] == named


@pytest.mark.parametrize(
    ("parallel", "named"),
    [
        ({}, []),
        ({"master_addr": "head"}, ["--master-addr"]),
        ({"master_port": 4711}, ["--master-port"]),
        ({"master_addr": "head", "master_port": 4711, "nnodes": 2}, []),
    ],
)
def test_where_hosts_would_meet_is_told_to_be_ignored_on_one_host(
    parallel: dict[str, Any], named: list[str]
) -> None:
    config = Config(parallel=ParallelConfig(**parallel))
    found = launch.ignored_settings(config, engine_ready(), LOCAL)
    assert [reason.split(":")[0] for reason in found] == named
    assert all("--nnodes is 1" in reason for reason in found)


def test_a_revision_of_a_model_on_this_machine_is_told(tmp_path: Path) -> None:
    ready = engine_ready()
    for model, count in ((None, 1), (str(tmp_path), 1), ("owner/of-the-hub", 0)):
        config = Config(model=ModelConfig(model=model, revision="main"))
        assert len(launch.ignored_settings(config, ready, LOCAL)) == count


def test_nothing_slow_is_imported_before_the_engine_is_started() -> None:
    code = (
        "import sys, atom_lite.launch\n"
        "slow = {'fastapi', 'pydantic', 'uvicorn', 'jinja2', 'tokenizers', 'prometheus_client',\n"
        "        'numpy', 'torch', 'transformers'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
