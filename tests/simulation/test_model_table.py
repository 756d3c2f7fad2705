"""The published model's table, through the real scheduler instead of a formula."""

from __future__ import annotations

import pytest

from atom_lite.simulation.contest import run_policy
from atom_lite.simulation.policies import PolicySpec
from tests.simulation.machines import MAKESPAN, fixed, machine, one_prompt, ttft

SIZES_TRIED_BY_HAND = (2048, 4096, 6144, 8192)
RECIPE = PolicySpec(name="atom", budget_tokens=32768, smooth_factor=0.75)
# prompt, stages, TTFT in ms of the best fixed chunk, ATOM's 32K/0.75 recipe and the makespan plan
TABLE = [
    (32768, 4, 1261, 2291, 1143),
    (65536, 4, 3232, 4119, 2944),
    (131072, 4, 9610, 10319, 8909),
    (262144, 4, 31679, 31598, 30087),
    (131072, 8, 11543, 14885, 10459),
]


@pytest.mark.parametrize(("prompt", "stages", "best", "recipe", "plan"), TABLE)
def test_the_model_table_is_reproduced(
    prompt: int, stages: int, best: float, recipe: float, plan: float
) -> None:
    scenario = one_prompt(prompt, machine(stages))
    sizes = [ttft(scenario, fixed(size)) for size in SIZES_TRIED_BY_HAND]
    assert 1000 * min(sizes) == pytest.approx(best, rel=0.005)
    assert 1000 * ttft(scenario, RECIPE) == pytest.approx(recipe, rel=0.005)
    assert 1000 * ttft(scenario, MAKESPAN) == pytest.approx(plan, rel=0.005)


@pytest.mark.parametrize(
    ("prompt", "bases", "best"),
    [
        (32768, (9216, 9728, 10752), 1144),
        (65536, (15872, 16384, 17408), 2948),
        (131072, (26624, 27136, 28160), 8935),
    ],
)
def test_atom_tuned_in_hindsight_per_length_is_reproduced(
    prompt: int, bases: tuple[int, ...], best: float
) -> None:
    scenario = one_prompt(prompt, machine(4))
    tuned = [
        ttft(
            scenario,
            PolicySpec(name="atom", budget_tokens=base, smooth_factor=1.0, min_chunk_tokens=64),
        )
        for base in bases
    ]
    assert 1000 * min(tuned) == pytest.approx(best, rel=0.005)
    # The plan needs nobody to tune it.
    assert ttft(scenario, MAKESPAN) <= 1.005 * min(tuned)


def test_atoms_own_run_has_the_chunks_that_it_printed() -> None:
    spec = PolicySpec(name="atom", budget_tokens=32768, smooth_factor=1.0)
    sizes = run_policy(one_prompt(131072, machine(4)), spec).chunk_sizes(0)
    assert sizes[:3] == [32768, 16192, 12416]
    assert sizes[-2:] == [5504, 3840]
    assert len(sizes) == 13
