"""The rows of the claims table that need the engine, from the visits of the interference benchmark.

Each is a ratio of the same run, and says what it rests on. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.claims import Claim, judged
from benchmarks.interference_arms import BASE, BASE_BUDGET, BUDGETS, FACTORS, PIPELINE, SLO
from benchmarks.interference_report import figure, level, median, of_arm, ratio
from benchmarks.interference_visit import CONTROL, DURING, LONG
from benchmarks.paired import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.interference_visit import ArmRun

GAP_P99, GAP_MAX = figure(DURING, "itl_p99"), figure(DURING, "itl_max")
LONG_TTFT = figure(LONG, "ttft_p50")
WHOLE = f"stall-free-{BUDGETS[-1]}"  # as good as a whole prompt
STALL_SHARE = 0.8  # of the whole prompt's prefill time: that is a stall of the whole prompt
MOST_OVERHEAD = 1.25
PLATEAU = 0.9


def engine_claims(command: str, runs: Sequence[ArmRun]) -> list[Claim]:
    """All rows that these visits can say something about."""
    rows = (
        _stall(command, runs),
        _ablation(command, runs),
        _naive_hybrid(command, runs),
        _overhead(command, runs),
        _plateau(command, runs),
        _pipeline(command, runs),
        _deadline(command, runs),
    )
    rounds = len({run.round for run in runs})
    return [
        replace(row, found=f"{row.found} (rounds: {rounds})") for row in rows if row is not None
    ]


def _stall(command: str, runs: Sequence[ArmRun]) -> Claim | None:
    first, base = of_arm(runs, "prefill-first"), of_arm(runs, BASE)
    if not first or not base:
        return None
    prefill = median(base, lambda run: run.solo_seconds) or 0.0
    worst, kept = median(first, GAP_MAX) or 0.0, median(base, GAP_MAX) or 0.0
    holds = worst >= STALL_SHARE * prefill and kept < worst
    return Claim(
        name="1-long-prompt-stalls-streams",
        where="engine",
        claim="one long prompt stalls every stream under prefill-first, not under stall-free",
        found=f"ITL p99 x{describe(ratio(first, base, GAP_P99))}, max "
        f"x{describe(ratio(first, base, GAP_MAX))} of {BASE}; worst stall {worst:.2f} s where the "
        f"prompt alone takes {prefill:.2f} s, under {BASE} {kept:.2f} s",
        **judged(
            holds=holds,
            because="a step of the whole prompt is the stall, and one of a budget where it is cut",
            otherwise=f"the worst stall is under {STALL_SHARE:.0%} of the prompt's prefill time or "
            "no longer than with chunks: see the noise of the streams alone",
        ),
        command=command,
    )


def _ablation(command: str, runs: Sequence[ArmRun]) -> Claim | None:
    arms = {name: of_arm(runs, name) for name in ("hybrid-only", "chunks-only", BASE)}
    if not all(arms.values()):
        return None
    ttft = {name: median(own, LONG_TTFT) or 0.0 for name, own in arms.items()}
    gap = {name: median(own, GAP_P99) or 0.0 for name, own in arms.items()}
    wins_ttft = ttft[BASE] <= ttft["chunks-only"]
    wins_gap = gap[BASE] <= gap["hybrid-only"]
    found = ", ".join(f"{name} {ttft[name]:.2f} s / {1e3 * gap[name]:.0f} ms" for name in arms)
    return Claim(
        name="2-ablation",
        where="engine",
        claim="only hybrid batching and chunking together win both TTFT and TBT (Sarathi-Serve, "
        "Table 4)",
        found=f"long TTFT p50 / TBT p99: {found}",
        **judged(
            holds=wins_ttft and wins_gap,
            because="chunks alone wait for turns of decodes, whole prompts alone make the gaps",
            otherwise="a decode step costs little beside a chunk here, so taking turns costs the "
            "prompt little",
        ),
        command=command,
    )


def _naive_hybrid(command: str, runs: Sequence[ArmRun]) -> Claim | None:
    naive = of_arm(runs, "hybrid-only") or of_arm(runs, "orca")
    base = of_arm(runs, BASE)
    if not naive or not base:
        return None
    alone = figure(CONTROL, "itl_p50")
    factors = [
        (median(own, GAP_MAX) or 0.0) / (median(own, alone) or float("inf"))
        for own in (naive, base)
    ]
    return Claim(
        name="3-naive-hybrid",
        where="engine",
        claim="naive hybrid batching inflates TBT up to 28.3x over decode-only, chunks hold it",
        found=f"longest gap x{factors[0]:.1f} of decode-only, with chunks of {BASE_BUDGET} "
        f"x{factors[1]:.1f}",
        **judged(
            holds=factors[0] > factors[1],
            because="the factor is the prefill of a whole prompt over a decode step",
            otherwise="the noise of the streams alone is as long as the prompt's step",
        ),
        command=command,
    )


def _solo(runs: Sequence[ArmRun]) -> dict[int, float]:
    """Budget -> seconds that a long prompt takes alone."""
    found = {}
    for budget in BUDGETS:
        seconds = median(of_arm(runs, f"stall-free-{budget}"), lambda run: run.solo_seconds)
        if seconds is not None:
            found[budget] = seconds
    return found


def _overhead(command: str, runs: Sequence[ArmRun]) -> Claim | None:
    solo = _solo(runs)
    if 512 not in solo or BUDGETS[-1] not in solo:
        return None
    whole = of_arm(runs, WHOLE)
    cost = {
        budget: describe(
            ratio(of_arm(runs, f"stall-free-{budget}"), whole, lambda run: run.solo_seconds)
        )
        for budget in solo
    }
    return Claim(
        name="4-chunk-overhead",
        where="engine",
        claim="chunks of 512 cost at most about 25 % of prefill time, of 2048 almost nothing "
        "(Sarathi-Serve, Fig. 14)",
        found=f"prompt alone, over budget {BUDGETS[-1]}: "
        + ", ".join(f"{budget} x{text}" for budget, text in cost.items()),
        **judged(
            holds=solo[512] <= MOST_OVERHEAD * solo[BUDGETS[-1]],
            because="a CPU's step has little that is paid once, so short chunks cost less than a "
            "GPU's",
            otherwise="each chunk reads the prefix again, and its step has a cost of its own",
        ),
        command=command,
    )


def _plateau(command: str, runs: Sequence[ArmRun]) -> Claim | None:
    solo = _solo(runs)
    if 512 not in solo or len(solo) < 3:
        return None
    fastest = min(solo.values())
    shares = {budget: fastest / seconds for budget, seconds in solo.items()}
    return Claim(
        name="5-prefill-plateau",
        where="engine",
        claim="512 tokens reach about 90 % of the prefill plateau (Sarathi-Serve, Fig. 4)",
        found="of the best rate: " + ", ".join(f"{b} {share:.0%}" for b, share in shares.items()),
        **judged(
            holds=shares[512] >= PLATEAU,
            because="two cores are busy with far fewer tokens than a GPU needs",
            otherwise="the best rate is that of another chunk size on these cores",
        ),
        command=command,
    )


def _pipeline(command: str, runs: Sequence[ArmRun]) -> Claim | None:
    shares = {
        arm: median(of_arm(runs, f"{PIPELINE}{arm}"), lambda run: run.bubbles_share)
        for arm in (BASE, "prefill-first")
    }
    ours, theirs = shares[BASE], shares["prefill-first"]
    if ours is None or theirs is None:
        return None
    return Claim(
        name="7-bubbles-pp2",
        where="engine",
        claim="uniform steps cut pipeline bubbles: two stages on the engine",
        found=f"idle share of the stages {ours:.1%} with chunks of {BASE_BUDGET}, {theirs:.1%} "
        "with whole prompts",
        **judged(
            holds=ours < theirs,
            because="a stage waits for the one before it as long as their steps differ",
            otherwise="two stages share two cores with the client here, and both wait for it",
        ),
        command=command,
    )


def _deadline(command: str, runs: Sequence[ArmRun]) -> Claim | None:
    factor = str(min(FACTORS))
    late = level(factor, DURING, "late_gap_share")
    paper = level(factor, DURING, "fluidity_paper")
    own, base = of_arm(runs, f"{SLO}{factor}x"), of_arm(runs, BASE)
    if not own or not base:
        return None
    ours, theirs = median(own, late), median(base, late)
    fluid = [median(visits, paper) or 0.0 for visits in (own, base)]
    if ours is None or theirs is None:
        return None
    return Claim(
        name="8-fixed-budget-and-deadline",
        where="engine",
        claim="at a fixed budget almost all mixed batches violate a tight deadline (Etalon)",
        found=f"gaps over {factor}x decode-only while long prompts run: {theirs:.0%} under {BASE}, "
        f"{ours:.0%} under slo; fluidity (paper) {fluid[1]:.2f} and {fluid[0]:.2f}",
        **judged(
            holds=theirs > ours,
            because="a budget in tokens takes longer with every token of prefix and every stream",
            otherwise="this budget is short enough for the objective here",
        ),
        command=command,
    )
