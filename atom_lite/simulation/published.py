"""ATOM's published figures beside what its own published coefficients say: the misfit, shown.

Kimi-K2.5-MXFP4, prefill over 4 stages, prompts of 131072 tokens, disaggregated; the coefficients
are those that the same text prints. Nothing here is tuned to the figures: what the model does not
know (scheduler work, sends, KV hand-over, tile effects) is the misfit, and it grows with the number
of chunks. Source: the Dynamic CPP document of ROCm/ATOM's pull request 2007.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.simulation.contest import Scenario, run_policy
from atom_lite.simulation.measure import measure
from atom_lite.simulation.policies import PolicySpec
from atom_lite.simulation.stages import PipelineSpec
from atom_lite.simulation.tables import render
from atom_lite.simulation.workloads import Request

COEFFICIENTS_MS = (3.25e-7, 6.03e-3, 26.1, 5.39e-4)  # a, b, c, gamma
NUM_STAGES = 4
PROMPT_TOKENS = 131072
PROMPTS_PER_SLOT = 3
BASELINE = "fixed:32768"


class PublishedRow(NamedTuple):
    """A measured mean TTFT at concurrency 1."""

    policy: PolicySpec
    ttft_seconds: float


SOLE_PROMPTS = (
    PublishedRow(PolicySpec(name="fixed", budget_tokens=32768), 14.896),
    PublishedRow(PolicySpec(name="fixed", budget_tokens=16384), 11.459),
    PublishedRow(PolicySpec(name="fixed", budget_tokens=8192), 10.121),
    PublishedRow(PolicySpec(name="fixed", budget_tokens=4096), 10.297),
    PublishedRow(PolicySpec(name="fixed", budget_tokens=2048), 12.286),
    PublishedRow(PolicySpec(name="atom", budget_tokens=32768, smooth_factor=1.0), 9.774),
)
# concurrency -> throughput of ATOM's rule over fixed 32768
CONCURRENT_PROMPTS = {4: 13095 / 14618, 16: 13377 / 15785}


class Misfit(NamedTuple):
    """One published ratio beside the simulated one."""

    name: str
    published: float
    simulated: float

    @property
    def share(self) -> float:
        """How far off the simulation is, as a share of what was published."""
        return self.simulated / self.published - 1.0


def kimi() -> LatencyModel:
    """The published coefficients."""
    a, b, c, gamma = COEFFICIENTS_MS
    return LatencyModel.from_milliseconds(a=a, b=b, c=c, gamma=gamma)


def sole_prompt_misfits() -> list[Misfit]:
    """Mean TTFT over that of fixed 32768, one prompt at a time."""
    simulated = [
        measure(run_policy(_scenario(1, 1), row.policy)).ttft_seconds.mean for row in SOLE_PROMPTS
    ]
    baseline = SOLE_PROMPTS[0].ttft_seconds
    return [
        Misfit(str(row.policy), row.ttft_seconds / baseline, seconds / simulated[0])
        for row, seconds in zip(SOLE_PROMPTS[1:], simulated[1:], strict=True)
    ]


def concurrent_misfits() -> list[Misfit]:
    """Throughput of ATOM's rule over that of fixed 32768, several prompts at once."""
    misfits = []
    for concurrency, ratio in CONCURRENT_PROMPTS.items():
        scenario = _scenario(concurrency * PROMPTS_PER_SLOT, concurrency)
        rates = [
            measure(run_policy(scenario, row.policy)).prompt_tokens_per_second
            for row in (SOLE_PROMPTS[-1], SOLE_PROMPTS[0])
        ]
        name = f"{SOLE_PROMPTS[-1].policy}, {concurrency} at once"
        misfits.append(Misfit(name, ratio, rates[0] / rates[1]))
    return misfits


def root_mean_square(misfits: list[Misfit]) -> float:
    """Of the misfits' shares."""
    return math.sqrt(math.fsum(m.share * m.share for m in misfits) / len(misfits))


def report() -> str:
    """Both tables, in words that say what they are."""
    sole, concurrent = sole_prompt_misfits(), concurrent_misfits()
    return (
        f"{PROMPT_TOKENS} prompt tokens, {NUM_STAGES} stages, one prompt at a time: "
        f"mean TTFT over that of {BASELINE}\n"
        f"{_table(sole)}"
        f"root mean square of the misfits: {root_mean_square(sole):.1%}\n\n"
        f"several prompts at once: throughput over that of {BASELINE}\n"
        f"{_table(concurrent)}"
        f"root mean square of the misfits: {root_mean_square(concurrent):.1%}\n"
    )


def _scenario(num_requests: int, concurrency: int) -> Scenario:
    return Scenario(
        pipeline=PipelineSpec(models=(kimi(),) * NUM_STAGES),
        requests=(Request(prompt_tokens=PROMPT_TOKENS),) * num_requests,
        concurrency=concurrency,
        enable_prefix_caching=False,
    )


def _table(misfits: list[Misfit]) -> str:
    rows = [
        [m.name, f"{m.published:.3f}", f"{m.simulated:.3f}", f"{m.share:+.1%}"] for m in misfits
    ]
    return render(("policy", "published", "simulated", "misfit"), rows)
