"""What the launcher decides before and beside its processes; the processes are in tests/e2e."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from atom_lite import launch
from atom_lite.config import CacheConfig, Config, ModelConfig, ServerConfig
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


def test_a_revision_of_a_model_on_this_machine_is_told(tmp_path: Path) -> None:
    ready = engine_ready()
    for model, count in ((None, 1), (str(tmp_path), 1), ("owner/of-the-hub", 0)):
        config = Config(model=ModelConfig(model=model, revision="main"))
        assert len(launch.ignored_settings(config, ready, LOCAL)) == count
