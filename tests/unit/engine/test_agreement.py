from __future__ import annotations

import dataclasses

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from atom_lite.config import CacheConfig, Config, ModelConfig, ServerConfig
from atom_lite.engine.agreement import FollowerTerms, HeadTerms
from atom_lite.errors import ConfigError
from atom_lite.parallel.link import PipelineError
from atom_lite.parallel.topology import Topology
from atom_lite.worker.runner import RunnerInfo

CONFIG = Config(model=ModelConfig(model="/models/a/SmolLM2", dtype="float32"))
INFO = RunnerInfo(
    num_blocks=77,
    max_model_len=2048,
    num_stages=2,
    layers_per_stage=(15, 15),
    vocab_size=49152,
    hidden_size=576,
    eos_token_ids=(2,),
    dtype="float32",
    activation_dtype="float32",
    quantization="none",
    device="cpu",
    architecture="LlamaForCausalLM",
    default_sampling={},
    memory_bytes={},
)


@pytest.fixture
def both() -> tuple[HeadTerms, FollowerTerms]:
    store = HashStore()
    return (
        HeadTerms(store, Topology(num_stages=2, rank=0)),
        FollowerTerms(store, Topology(num_stages=2, rank=1), startup_seconds=0.1),
    )


def test_the_same_model_in_another_directory_and_a_port_of_its_own_are_fine(
    both: tuple[HeadTerms, FollowerTerms],
) -> None:
    head, follower = both
    head.publish_flags(CONFIG)
    follower.check_flags(
        Config(
            model=ModelConfig(model="/elsewhere/SmolLM2", dtype="float32"),
            server=ServerConfig(port=1234),
        )
    )
    head.check_refusals([1])


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            Config(model=ModelConfig(model="/models/a/Qwen3", dtype="float32")),
            "--model is Qwen3 instead of the head's SmolLM2",
        ),
        (
            Config(model=ModelConfig(model="/models/a/SmolLM2")),
            "--dtype is auto instead of the head's float32",
        ),
        (
            dataclasses.replace(CONFIG, cache=CacheConfig(block_size=32)),
            "--block-size is 32 instead of the head's 16",
        ),
    ],
)
def test_other_flags_are_refused_at_both_ends(
    both: tuple[HeadTerms, FollowerTerms], config: Config, told: str
) -> None:
    head, follower = both
    head.publish_flags(CONFIG)
    with pytest.raises(ConfigError, match=f"all nodes need the same settings: {told}"):
        follower.check_flags(config)
    with pytest.raises(ConfigError, match=f"stage 1 was started with other settings: {told}"):
        head.check_refusals([1])


def test_a_head_that_says_nothing_is_not_waited_for_for_ever(
    both: tuple[HeadTerms, FollowerTerms],
) -> None:
    with pytest.raises(PipelineError, match=r"the head did not come up within 0\.1 s"):
        both[1].check_flags(CONFIG)


def test_a_stage_is_ready_once_it_has_loaded_the_same(
    both: tuple[HeadTerms, FollowerTerms],
) -> None:
    head, follower = both
    head.publish_facts(INFO)
    assert follower.pool_blocks() == 77
    head.wait_until_ready(30.0, check=lambda: follower.check_facts(INFO))


def test_a_stage_that_loaded_something_else_is_not_ready(
    both: tuple[HeadTerms, FollowerTerms],
) -> None:
    head, follower = both
    head.publish_facts(INFO)
    with pytest.raises(ConfigError, match="dtype is bfloat16 instead of the head's float32"):
        follower.check_facts(dataclasses.replace(INFO, dtype="bfloat16"))
    with pytest.raises(PipelineError, match="stage 1 did not load"):
        head.wait_until_ready(0.0, check=lambda: None)


def test_a_stage_that_hangs_while_it_loads_is_named_with_the_limit(
    both: tuple[HeadTerms, FollowerTerms],
) -> None:
    told = r"stage 1 did not load within 0\.1 s \(--startup-timeout-seconds\) after stage 0"
    with pytest.raises(PipelineError, match=told):
        both[0].wait_until_ready(0.1, check=lambda: None)


def test_a_head_that_is_there_is_not_missed(both: tuple[HeadTerms, FollowerTerms]) -> None:
    both[1].check_head()


def test_a_head_that_loads_while_the_others_do_is_waited_for(
    both: tuple[HeadTerms, FollowerTerms],
) -> None:
    for _ in range(2):
        both[0].check_own_load(0.0)


def test_a_head_that_hangs_while_it_loads_is_named_with_the_limit() -> None:
    store = HashStore()
    head = HeadTerms(store, Topology(num_stages=3, rank=0))
    followers = [
        FollowerTerms(store, Topology(num_stages=3, rank=rank), startup_seconds=0.1)
        for rank in (1, 2)
    ]
    head.publish_facts(INFO)  # so that nobody waits here
    for follower in followers:
        head.check_own_load(0.0)
        assert follower.pool_blocks() == 77
    head.check_own_load(0.0)  # now all the others have loaded
    head.check_own_load(60.0)
    told = r"stage 0 did not load within 0 s \(--startup-timeout-seconds\) after all other stages"
    with pytest.raises(PipelineError, match=told):
        head.check_own_load(0.0)
