"""From the arms' results to checks that can fail, and to a table. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.score_pairs import MOST_NLL_CHANGE, paired_score, relative_nll_change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.accuracy_arms import ArmResult

LEAST_MODEL_SHARE = 0.9
SCORE_RANGE = (0.4, 0.8)  # of the reference; outside of it the items are too easy or too hard


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check and why it came out as it did."""

    check: str
    passed: bool
    detail: str


def judge(results: Sequence[ArmResult]) -> list[Verdict]:
    """All checks of the protocol over the arms of `benchmarks.accuracy`."""
    by_name = {result.arm.name: result for result in results}
    fixed, model, planted = (by_name[name] for name in ("fixed", "model", "planted error"))
    low, high = SCORE_RANGE
    return [
        Verdict("the items tell right from wrong", low <= fixed.score <= high, _score(fixed)),
        _identical(fixed, by_name["fixed again"]),
        _sized_by_model(model),
        _identical(model, by_name["same boundaries"]),
        _as_good(fixed, model),
        *(_as_good(fixed, by_name[name]) for name in ("fixed 384", "fixed 256")),
        _found_out(fixed, planted),
    ]


def compare(first: ArmResult, second: ArmResult) -> tuple[bool, str]:
    """Whether the second arm is as good as the first, and the numbers."""
    pairs = paired_score(first.right, second.right)
    change = relative_nll_change(first.window_nll, second.window_nll)
    same = sum(a == b for a, b in zip(first.outputs, second.outputs, strict=True))
    detail = (
        f"score {pairs.difference:+.3f} (sigma {pairs.sigma:.3f}, {pairs.gained} gained, "
        f"{pairs.lost} lost), NLL {change:+.3%}, {same}/{pairs.items} outputs identical"
    )
    return pairs.is_within and abs(change) <= MOST_NLL_CHANGE, detail


def _identical(first: ArmResult, second: ArmResult) -> Verdict:
    common = min(len(first.window_nll), len(second.window_nll))
    passed = (
        first.outputs == second.outputs and first.window_nll[:common] == second.window_nll[:common]
    )
    check = f"{second.arm.name} is identical to {first.arm.name}"
    return Verdict(check, passed, compare(first, second)[1])


def _as_good(first: ArmResult, second: ArmResult) -> Verdict:
    passed, detail = compare(first, second)
    return Verdict(f"{second.arm.name} is as good as {first.arm.name}", passed, detail)


def _found_out(fixed: ArmResult, planted: ArmResult) -> Verdict:
    as_good, detail = compare(fixed, planted)
    return Verdict(f"the {planted.arm.name} is found out", not as_good, detail)


def _sized_by_model(result: ArmResult) -> Verdict:
    sizes = {tokens for tokens, _ in result.chunk_sizes.items()}
    passed = result.model_share >= LEAST_MODEL_SHARE and len(sizes) > 1
    counts = ", ".join(f"{n} {reason}" for reason, n in result.chunks_by_reason.items())
    state = "none" if result.chunking is None else result.chunking.state
    return Verdict(
        "chunks were sized by the model",
        passed,
        f"{counts}; {len(sizes)} sizes from {min(sizes)} to {max(sizes)}; calibration {state}",
    )


def _score(result: ArmResult) -> str:
    parts = [f"{kind} {score:.2f}" for kind, score in result.score_by_kind.items()]
    return f"{result.score:.3f} of {len(result.right)} items ({', '.join(parts)})"


def markdown(results: Sequence[ArmResult], verdicts: Sequence[Verdict], heading: str) -> str:
    """The arms as a table, the checks as a list."""
    lines = [
        "# Accuracy of model-sized chunks",
        "",
        heading,
        "",
        "| arm | budget | chunks | sized by the model | score | NLL | over tokens | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r.arm.name} | {r.arm.budget} | {sum(r.chunks_by_reason.values())} "
        f"| {r.model_share:.0%} | {r.score:.3f} | {r.nll:.4f} | {r.nll_tokens} "
        f"| {r.seconds:.0f} |"
        for r in results
    ]
    lines += ["", "NLL is comparable between arms over the same tokens only.", ""]
    lines += [
        f"- {'passed' if verdict.passed else 'FAILED'}: {verdict.check}: {verdict.detail}"
        for verdict in verdicts
    ]
    return "\n".join(lines)
