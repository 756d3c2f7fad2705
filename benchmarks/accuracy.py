"""Do model-sized chunks answer as well as fixed ones? Run the protocol, and say what it shows.

    python -m benchmarks.accuracy --output benchmarks/results/accuracy

Arms, one after the other over the same items and the same text, on two stages of the default model:

    fixed            the reference
    fixed again      must give identical tokens and likelihoods
    model            sizes from a latency model fitted on the spot; as good as fixed
    same boundaries  the sizes of `model` given again; identical to it
    fixed 384, 256   controls: what other fixed sizes change
    planted error    chunks that miss the last 16 tokens of their prefix; must be found out

"As good" is a score within two standard errors of the paired difference and a mean negative log
likelihood within 0.5 %. Arms other than the reference and `model` read the first quarter of the
text only; likelihoods are compared over the windows that two arms share. Exit code 1 when a
check fails. `--quick` is a sample that takes a minute or two on a quiet machine.
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atom_lite.config import CacheConfig, Config, ModelConfig
from atom_lite.models.checkpoint import resolve_checkpoint
from atom_lite.text.tokenizer import Tokenizer
from benchmarks import report
from benchmarks.accuracy_arms import Arm, ArmResult, Bench
from benchmarks.accuracy_verdicts import Verdict, judge, markdown
from benchmarks.reference_text import reference_text
from benchmarks.staged_model import load_staged_model
from benchmarks.tasks import QUICK_MIX, Mix, make_items
from benchmarks.text_nll import windows

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_STAGES = 2
NLL_TOKENS, WINDOW_TOKENS = 100_000, 4096
QUICK_NLL_TOKENS, QUICK_WINDOW_TOKENS = 2048, 1024
FIXED_BUDGET, MODEL_BUDGET = 512, 2048
DROPPED_TOKENS = 16
KV_BLOCKS = 1200
MAX_MODEL_LEN = 8192


def main(argv: Sequence[str] | None = None) -> int:
    """Run all arms; 1 when a check failed."""
    options = _parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    bench, num_windows = _make_bench(options)
    results = _run_arms(bench, num_windows)
    verdicts = judge(results)
    text = markdown(results, verdicts, _heading(options))
    print(text)
    report.write_json(options.output.with_suffix(".json"), _document(results, verdicts, options))
    options.output.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a sample of a minute or two")
    parser.add_argument("--seed", type=int, default=0, help="of the items")
    parser.add_argument("--threads", type=int, default=None, help="of the model; default: all")
    parser.add_argument("--profile", help="file that keeps the latency model; default: fit anew")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("accuracy"),
        help="path without suffix for the .json and the .md file",
    )
    return parser.parse_args(argv)


def _make_bench(options: argparse.Namespace) -> tuple[Bench, int]:
    """Load the model and make what it is asked; also the number of windows."""
    config = Config(
        model=ModelConfig(dtype="float32", threads=options.threads, max_model_len=MAX_MODEL_LEN),
        cache=CacheConfig(num_gpu_blocks_override=KV_BLOCKS),
    )
    tokenizer = Tokenizer.from_checkpoint(resolve_checkpoint(None).path)
    text = tokenizer.encode(reference_text(), add_special_tokens=False)
    cut = windows(
        text,
        num_tokens=QUICK_NLL_TOKENS if options.quick else NLL_TOKENS,
        window_tokens=QUICK_WINDOW_TOKENS if options.quick else WINDOW_TOKENS,
    )
    items = make_items(QUICK_MIX if options.quick else Mix(), options.seed)
    model = load_staged_model(config, NUM_STAGES)
    return Bench(config, model, tokenizer, items, cut, options.profile), len(cut)


def _run_arms(bench: Bench, num_windows: int) -> list[ArmResult]:
    few = -(-num_windows // 4)
    results = [
        _run(bench, Arm("fixed", FIXED_BUDGET, "fixed", num_windows)),
        _run(bench, Arm("fixed again", FIXED_BUDGET, "fixed", few)),
        _run(bench, Arm("model", MODEL_BUDGET, "model", num_windows)),
    ]
    given = results[-1].given
    results.append(_run(bench, Arm("same boundaries", MODEL_BUDGET, "replay", few), given))
    for budget in (384, 256):
        results.append(_run(bench, Arm(f"fixed {budget}", budget, "fixed", few)))
    planted = Arm("planted error", 256, "fixed", few, dropped_tokens=DROPPED_TOKENS)
    results.append(_run(bench, planted))
    return results


def _run(bench: Bench, arm: Arm, given: Sequence[Any] = ()) -> ArmResult:
    result = bench.run(arm, given)
    logging.info(
        "%s: score %.3f, NLL %.4f, %.0f s", arm.name, result.score, result.nll, result.seconds
    )
    return result


def _heading(options: argparse.Namespace) -> str:
    machine = report.machine()
    what = "quick sample" if options.quick else "full protocol"
    return (
        f"`{report.command_line(sys.argv)}` ({what}) on {machine['cores']} cores of "
        f"{machine['cpu']}, Python {machine['python']}"
    )


def _document(
    results: Sequence[ArmResult], verdicts: Sequence[Verdict], options: argparse.Namespace
) -> dict[str, Any]:
    return {
        "command": report.command_line(sys.argv),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": report.machine(),
        "seed": options.seed,
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "arms": [result.as_json() for result in results],
    }


if __name__ == "__main__":
    sys.exit(main())
