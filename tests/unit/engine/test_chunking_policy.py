from __future__ import annotations

import dataclasses

import pytest

from atom_lite.config import SMOOTH_FACTOR_VARIABLE, ChunkingConfig, Config, TransferConfig
from atom_lite.engine.chunking_policy import (
    make_controller,
    policy_name,
    smooth_factor,
)
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


@pytest.mark.parametrize(("policy", "num_ignored"), [("makespan", 2), ("sglang", 1), ("atom", 0)])
def test_atoms_flags_without_effect_are_named(
    policy: str, num_ignored: int, caplog: pytest.LogCaptureFixture
) -> None:
    chunking = dataclasses.replace(
        dynamic(policy).chunking,
        dynamic_chunking_smooth_factor=0.75,
        dynamic_chunking_min_chunk_size=256,
    )
    limits = dataclasses.replace(
        LIMITS, pipeline_depth=2, decode_step_tokens=512, prefill_step_tokens=1024
    )
    make_controller(Config(chunking=chunking), limits)
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "has no effect" in line]) == num_ignored


@pytest.mark.parametrize(
    ("policy", "is_used"),
    [("makespan", True), ("sglang", True), ("atom", False), ("linear", False), ("fixed", False)],
)
def test_a_policy_that_fits_no_model_says_that_it_keeps_no_profile(
    policy: str, is_used: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chunking = dataclasses.replace(
        dynamic(policy).chunking,
        dynamic_chunking_profile="profile.json",
        dynamic_chunking_min_chunk_size=256 if policy == "atom" else 4096,
    )
    limits = dataclasses.replace(
        LIMITS, pipeline_depth=2, decode_step_tokens=512, prefill_step_tokens=1024
    )
    make_controller(Config(chunking=chunking), limits)
    said = f"--dynamic-chunking-profile has no effect with --dynamic-chunking-policy {policy}"
    assert (said in caplog.messages) is not is_used


def test_chunking_flags_without_the_feature_are_named(caplog: pytest.LogCaptureFixture) -> None:
    chunking = ChunkingConfig(dynamic_chunking_policy="atom", dynamic_chunking_smooth_factor=0.5)
    limits = dataclasses.replace(LIMITS, pipeline_depth=2)
    make_controller(Config(chunking=chunking), limits)
    assert caplog.messages == [
        "--dynamic-chunking-policy has no effect without --enable-dynamic-chunking",
        "--dynamic-chunking-smooth-factor has no effect without --enable-dynamic-chunking",
    ]
    caplog.clear()
    make_controller(Config(), limits)
    assert not caplog.messages


def test_what_is_shown_is_the_policy_in_force_and_why() -> None:
    one, two = (dataclasses.replace(LIMITS, pipeline_depth=depth) for depth in (1, 2))
    role = TransferConfig(kv_transfer_config='{"kv_role": "kv_consumer"}')
    consumer = dataclasses.replace(dynamic("makespan"), transfer=role)
    assert policy_name(dynamic("makespan"), two) == "makespan"
    for config, limits, why in (
        (dynamic("makespan"), one, "there is one pipeline stage, and no pipeline to keep busy"),
        (consumer, two, "kv_role is kv_consumer"),
        (Config(), two, "dynamic chunking is not enabled"),
    ):
        assert policy_name(config, limits) == "fixed"
        assert make_controller(config, limits).status().reason == why


@pytest.mark.parametrize(
    ("sizes", "min_chunk", "named"),
    [
        ((448, 1000), 256, "at least 8 aligned profiling lengths, got 7"),
        ((2048, 256), 64, "at least 8 aligned profiling lengths, got 4"),
        ((1024, 4096), 1024, "--dynamic-chunking-min-chunk-size is 1024, must be below"),
    ],
)
def test_atom_3_what_leaves_nothing_to_solve_turns_policy_atom_off_with_a_warning(
    sizes: tuple[int, int], min_chunk: int, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    chunking = dataclasses.replace(
        dynamic("atom").chunking, dynamic_chunking_min_chunk_size=min_chunk
    )
    budget, max_model_len = sizes
    limits = dataclasses.replace(
        LIMITS, pipeline_depth=2, prefill_step_tokens=budget, max_model_len=max_model_len
    )
    controller = make_controller(Config(chunking=chunking), limits)
    assert controller.status().state == "off" and controller.startup() is None
    (record,) = caplog.records
    assert record.levelname == "WARNING" and named in record.getMessage()


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
    monkeypatch.delenv(SMOOTH_FACTOR_VARIABLE, raising=False)
    assert smooth_factor(Config()) == 0.75
    monkeypatch.setenv(SMOOTH_FACTOR_VARIABLE, "0.5")
    assert smooth_factor(Config()) == 0.5
    flag = Config(chunking=ChunkingConfig(dynamic_chunking_smooth_factor=1.0))
    assert smooth_factor(flag) == 1.0
    monkeypatch.setenv(SMOOTH_FACTOR_VARIABLE, "2")
    with pytest.raises(ConfigError, match="2: must be a number from 0 to 1"):
        smooth_factor(Config())
