"""Every arm is the server's own planner and cuts whole prompts."""

import pytest

from atom_lite.chunking.latency_model import LatencyModel
from benchmarks.chunk_arms import (
    DEFAULT_ARMS,
    Situation,
    cut_prompt,
    distinct_fixed_arms,
    is_fixed,
    planner_of,
    predicted_seconds,
    tuned_arms,
)
from benchmarks.stream_client import LoadError

MODEL = LatencyModel(
    constant_seconds=0.01,
    prefix_seconds_per_token=0.0,
    linear_seconds_per_token=1e-3,
    attention_seconds_per_area=1e-7,
)
SITUATION = Situation((MODEL, MODEL), 8191, 8192)


@pytest.mark.parametrize("arm", [*DEFAULT_ARMS, *tuned_arms()])
@pytest.mark.parametrize("tokens", [1, 100, 1024, 8191])
def test_each_arm_cuts_the_whole_prompt(arm: str, tokens: int) -> None:
    sizes = cut_prompt(planner_of(arm, SITUATION), tokens)
    assert sum(sizes) == tokens
    assert min(sizes) >= 1


def test_atoms_recipe_is_scaled_to_the_prompt_range() -> None:
    sizes = cut_prompt(planner_of("atom", SITUATION), 8191)
    assert sizes[0] == 8191 // 4
    assert list(sizes[1:-1]) == sorted(sizes[1:-1], reverse=True)
    assert min(sizes[:-1]) >= 8191 // 32
    assert sizes[0] == cut_prompt(planner_of("sglang", SITUATION), 8191)[0]


def test_makespan_is_predicted_to_be_the_best_of_all() -> None:
    for tokens in (1024, 8191):
        seconds = {
            arm: predicted_seconds(SITUATION, cut_prompt(planner_of(arm, SITUATION), tokens))
            for arm in [*DEFAULT_ARMS, *tuned_arms()]
        }
        assert seconds["makespan"] <= 1.003 * min(seconds.values()), seconds


def test_makespan_keeps_to_the_servers_budget() -> None:
    small = SITUATION._replace(budget_tokens=512)
    assert max(cut_prompt(planner_of("makespan", small), 8191)) <= 512


def test_fixed_arms_that_cut_alike_count_once() -> None:
    arms = distinct_fixed_arms(DEFAULT_ARMS, 1024)
    assert list(arms) == ["fixed-256", "fixed-512", "fixed-1024"]
    assert arms["fixed-512"] == (512, 512)
    assert [arm for arm in DEFAULT_ARMS if is_fixed(arm)] == [
        f"fixed-{size}" for size in (256, 512, 1024, 2048, 4096)
    ]


@pytest.mark.parametrize("arm", ["best", "fixed-many", "fixed", "atom-1024", "atom-1024-0.5-1"])
def test_an_unknown_arm_is_named(arm: str) -> None:
    with pytest.raises(LoadError, match=f"no such arm: '{arm}'"):
        planner_of(arm, SITUATION)
