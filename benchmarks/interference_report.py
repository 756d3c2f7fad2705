"""What the interference benchmark says: one table, paired ratios, and how `slo` is judged.

    gaps   of the streams, while long prompts are beside them; allowed for an objective:
           objective x 1.1 + (p99 - p50 of the same streams alone)
    price  long TTFT over that of the static budget with the same ITL p99, picked on even rounds
           and judged on odd ones

Pure but for the files.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.interference_arms import BASE, SLO, budget_of
from benchmarks.interference_visit import ALL, CONTROL, DURING, LONG
from benchmarks.paired import Ratio, describe, paired_ratio
from benchmarks.report import milliseconds, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from benchmarks.interference_timeline import Timeline
    from benchmarks.interference_visit import ArmRun

    Value = Callable[[ArmRun], float | None]

GAP_ALLOWANCE = 1.1
COLUMNS = (
    *("arm", "visits", "long TTFT p50 s", "p99 s", "ITL p50 ms", "p99 ms", "max ms"),
    *("alone p50 ms", "p99 ms", "fluidity docs 3x/6x", "paper 3x/6x", "goodput 3x/6x /s"),
    "tokens/s",
)


def write_reports(
    document: dict[str, Any], runs: Sequence[ArmRun], timelines: Sequence[Timeline], output: Path
) -> str:
    """OUTPUT.md, and OUTPUT.png where there are timelines and matplotlib; returns the text."""
    text = markdown(document, runs)
    if timelines:
        try:
            from benchmarks.interference_plots import write_plots
        except ModuleNotFoundError as error:
            if error.name != "matplotlib":
                raise
            text += "\nNo plots: matplotlib is not installed (extra `bench`).\n"
        else:
            write_plots(timelines, output.with_suffix(".png"))
            text += f"\n![gaps and steps of every arm]({output.with_suffix('.png').name})\n"
    output.with_suffix(".md").write_text(text)
    return text


def markdown(document: dict[str, Any], runs: Sequence[ArmRun]) -> str:
    """Everything but the plots."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    lines = [
        "# Long prompts beside token streams, by batching policy",
        "",
        f"- Machine: {document['machine']['cpu']}, {document['machine']['cores']} cores",
        f"- Run: `{document['command']}`",
        f"- {document['model']}; 8 streams beside prompts of {document['long_tokens']} tokens; "
        f"seed {document['seed']}",
        "- Medians over the visits; objectives are 3 and 6 times the decode-only ITL p50 of the "
        "round's base",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|---|{'---:|' * (len(COLUMNS) - 1)}",
        *(f"| {' | '.join(_row(arm, of_arm(runs, arm)))} |" for arm in arms),
        "",
        *_trace_lines(document, runs, arms),
        *_ratio_lines(runs, arms),
        *_slo_lines(runs, arms),
    ]
    failures = [f"- round {r.round}, {r.arm}: {line}" for r in runs for line in r.failures]
    if failures:
        lines += ["## Failures", "", *failures, ""]
    return "\n".join(lines)


def of_arm(runs: Iterable[ArmRun], arm: str) -> list[ArmRun]:
    """An arm's visits that brought figures, by round."""
    return sorted((r for r in runs if r.arm == arm and r.points), key=lambda r: r.round)


def median(runs: Iterable[ArmRun], value: Value) -> float | None:
    """Over the visits that have it."""
    known = [found for run in runs if (found := value(run)) is not None]
    return statistics.median(known) if known else None


def figure(point: str, name: str) -> Value:
    """A figure of a point, for `median` and `ratio`."""
    return lambda run: run.figure(point, name)


def level(factor: str, point: str, name: str) -> Value:
    """A service level of a point under an objective."""
    return lambda run: run.levels.get(factor, {}).get(point, {}).get(name)


def ratio(ours: Iterable[ArmRun], theirs: Iterable[ArmRun], value: Value) -> Ratio | None:
    """Paired by round, over the rounds in which both have it."""
    others = {run.round: value(run) for run in theirs}
    pairs = [
        (mine, other)
        for run in ours
        if (mine := value(run)) is not None and (other := others.get(run.round))
    ]
    return paired_ratio([one for one, _ in pairs], [two for _, two in pairs]) if pairs else None


def _row(arm: str, runs: list[ArmRun]) -> list[str]:
    def shown(factors_of: Callable[[str], Value], digits: int) -> str:
        return "/".join(number(median(runs, factors_of(factor)), digits) for factor in ("3", "6"))

    return [
        arm,
        str(len(runs)),
        number(median(runs, figure(LONG, "ttft_p50")), 2),
        number(median(runs, figure(LONG, "ttft_p99")), 2),
        *(milliseconds(median(runs, figure(DURING, f"itl_{n}"))) for n in ("p50", "p99", "max")),
        *(milliseconds(median(runs, figure(CONTROL, f"itl_{n}"))) for n in ("p50", "p99")),
        shown(lambda factor: level(factor, DURING, "fluidity_docs"), 3),
        shown(lambda factor: level(factor, DURING, "fluidity_paper"), 3),
        shown(lambda factor: level(factor, ALL, "goodput_per_second"), 3),
        number(median(runs, figure(ALL, "output_tokens_per_second")), 1),
    ]


def _trace_lines(document: dict[str, Any], runs: Sequence[ArmRun], arms: list[str]) -> list[str]:
    """One table for each trace."""
    lines: list[str] = []
    for trace in document["traces"]:
        lines += [
            f"## {trace}",
            "",
            "| arm | TTFT p50 s | p99 s | ITL p50 ms | p99 ms | max ms | fluid 6x docs/paper "
            "| goodput 3x/6x /s | goodput 6x over base | tokens/s |",
            f"|---|{'---:|' * 9}",
        ]
        lines += [
            f"| {' | '.join(_trace_row(trace, arm, of_arm(runs, arm), of_arm(runs, BASE)))} |"
            for arm in arms
        ]
        lines.append("")
    return lines


def _trace_row(trace: str, arm: str, runs: list[ArmRun], base: list[ArmRun]) -> list[str]:
    good = level("6", trace, "goodput_per_second")
    tight = median(runs, level("3", trace, "goodput_per_second"))
    shares = [median(runs, level("6", trace, f"fluid_share_{n}")) for n in ("docs", "paper")]
    return [
        arm,
        *(number(median(runs, figure(trace, f"ttft_{n}")), 2) for n in ("p50", "p99")),
        *(milliseconds(median(runs, figure(trace, f"itl_{n}"))) for n in ("p50", "p99", "max")),
        "/".join(number(share, 2) for share in shares),
        f"{number(tight, 3)}/{number(median(runs, good), 3)}",
        describe(ratio(runs, base, good)),
        number(median(runs, figure(trace, "output_tokens_per_second")), 1),
    ]


def _ratio_lines(runs: Sequence[ArmRun], arms: list[str]) -> list[str]:
    base = of_arm(runs, BASE)
    lines = [
        f"## Paired with {BASE}",
        "",
        "Median ratio over the rounds, with its 95 % interval; below 1 the arm is better.",
        "",
        "| arm | ITL p99 | ITL max | long TTFT p50 |",
        "|---|---:|---:|---:|",
    ]
    values = (figure(DURING, "itl_p99"), figure(DURING, "itl_max"), figure(LONG, "ttft_p50"))
    for arm in arms:
        cells = [describe(ratio(of_arm(runs, arm), base, value)) for value in values]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return [*lines, ""]


def _slo_lines(runs: Sequence[ArmRun], arms: list[str]) -> list[str]:
    rows = [line for arm in arms if arm.startswith(SLO) for line in [_judged(runs, arm)]]
    if not rows:
        return []
    return [
        "## slo by its objectives",
        "",
        "| arm | objective ms | ITL p99 over what is allowed | static budget of the same ITL p99 "
        "| long TTFT over its |",
        "|---|---:|---:|---|---:|",
        *rows,
        "",
    ]


def allowed_gap(run: ArmRun, factor: str) -> float | None:
    """What the ITL p99 of an objective may be, by the noise of the same streams alone."""
    low, high = run.figure(CONTROL, "itl_p50"), run.figure(CONTROL, "itl_p99")
    objective = run.objectives.get(factor)
    if low is None or high is None or objective is None:
        return None
    return GAP_ALLOWANCE * objective + (high - low)


def _judged(runs: Sequence[ArmRun], arm: str) -> str:
    own = of_arm(runs, arm)
    factor = arm.removeprefix(SLO).removesuffix("x")
    pairs = [
        (gap, most)
        for run in own
        if (gap := run.figure(DURING, "itl_p99")) and (most := allowed_gap(run, factor))
    ]
    within = paired_ratio([g for g, _ in pairs], [m for _, m in pairs]) if pairs else None
    static = static_of_same_gap(runs, arm)
    price = None
    if static is not None:
        price = ratio(_half(own, 1), _half(of_arm(runs, static), 1), figure(LONG, "ttft_p50"))
    objective = median(own, lambda run: run.objectives.get(factor))
    cells = (arm, milliseconds(objective), describe(within), static or "-", describe(price))
    return f"| {' | '.join(cells)} |"


def static_of_same_gap(runs: Sequence[ArmRun], arm: str) -> str | None:
    """The static budget with the least long TTFT of those with no longer ITL p99; even rounds."""
    gap = median(_half(of_arm(runs, arm), 0), figure(DURING, "itl_p99"))
    found: dict[str, float] = {}
    for other in dict.fromkeys(run.arm for run in runs):
        half = _half(of_arm(runs, other), 0)
        own, ttft = median(half, figure(DURING, "itl_p99")), median(half, figure(LONG, "ttft_p50"))
        if budget_of(other) is None or gap is None or own is None or ttft is None:
            continue
        if own <= gap:
            found[other] = ttft
    return min(found, key=lambda name: found[name]) if found else None


def _half(runs: Iterable[ArmRun], rest: int) -> list[ArmRun]:
    return [run for run in runs if run.round % 2 == rest]
