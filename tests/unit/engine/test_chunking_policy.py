from __future__ import annotations

import dataclasses

import pytest

from atom_lite.config import ChunkingConfig, Config, TransferConfig
from atom_lite.engine.chunking_policy import SMOOTH_VARIABLE, make_controller, smooth_factor
from atom_lite.errors import ConfigError
from tests.unit.engine.test_in_process import LIMITS


def dynamic(policy: str) -> Config:
    chunking = ChunkingConfig(enable_dynamic_chunking=True, dynamic_chunking_policy=policy)
    return Config(chunking=chunking)


@pytest.mark.parametrize("policy", ["makespan", "atom", "sglang", "linear", "fixed"])
@pytest.mark.parametrize("stages", [2, 3, 8])
def test_every_policy_is_made_for_any_number_of_stages(policy: str, stages: int) -> None:
    limits = dataclasses.replace(
        LIMITS, pipeline_depth=stages, decode_step_tokens=512, prefill_step_tokens=512
    )
    controller = make_controller(dynamic(policy), limits)
    assert controller.status().reason


@pytest.mark.parametrize("policy", ["makespan", "atom", "sglang", "linear", "fixed"])
def test_a_decode_instance_turns_every_policy_off_with_a_warning(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    role = TransferConfig(kv_transfer_config='{"kv_role": "kv_consumer"}')
    config = dataclasses.replace(dynamic(policy), transfer=role)
    controller = make_controller(config, dataclasses.replace(LIMITS, pipeline_depth=2))
    assert controller.status().state == "off"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "disabling dynamic chunking because kv_role is kv_consumer" in record.getMessage()
    assert "KV transfer is not supported yet" in record.getMessage()


def test_smooth_factor_comes_from_flag_then_environment_then_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SMOOTH_VARIABLE, raising=False)
    assert smooth_factor(Config()) == 0.75
    monkeypatch.setenv(SMOOTH_VARIABLE, "0.5")
    assert smooth_factor(Config()) == 0.5
    flag = Config(chunking=ChunkingConfig(dynamic_chunking_smooth_factor=1.0))
    assert smooth_factor(flag) == 1.0
    monkeypatch.setenv(SMOOTH_VARIABLE, "2")
    with pytest.raises(ConfigError, match="2: must be a number from 0 to 1"):
        smooth_factor(Config())
