"""The command line of the simulator: flags -> scenarios -> tables and a trace.

    python -m atom_lite.simulation --prompt 32K 128K --policy makespan atom fixed:best
    python -m atom_lite.simulation --prompt 4K-64K --requests 64 --concurrency 16 --output-tokens 64
    python -m atom_lite.simulation --published

A mistake in the flags is one line and exit code 2.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from atom_lite.chunking.latency_model import MILLISECONDS_PER_SECOND, LatencyModel
from atom_lite.chunking.profile import load_profile
from atom_lite.errors import ConfigError
from atom_lite.simulation.chrome_trace import write_chrome_trace
from atom_lite.simulation.contest import Entry, Scenario, run_contest
from atom_lite.simulation.policies import parse_contest, parse_tokens
from atom_lite.simulation.published import COEFFICIENTS_MS, report
from atom_lite.simulation.stages import PipelineSpec
from atom_lite.simulation.tables import contest_table
from atom_lite.simulation.workloads import Lengths, constant, draw_requests, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.simulation.chrome_trace import StageInterval

EXIT_USAGE = 2
DEFAULT_STAGES = 4
DEFAULT_POLICIES = ("makespan", "atom", "sglang", "linear", "fixed:best")
_DESCRIPTION = (
    "Runs the real scheduler and chunk-size policies against simulated pipeline stages with a "
    "virtual clock, and prints TTFT per policy. Seconds on the clock cost none on the wall."
)
_POLICY_HELP = (
    "NAME[:BUDGET[:SMOOTH]] with NAME makespan, atom, sglang, linear or fixed; the budget of a "
    "step without decodes, such as 32K, or 'best' to try many and show the one with the lowest "
    "mean TTFT. Default: %(default)s"
)


class _Parser(argparse.ArgumentParser):
    """Argparse that raises ConfigError where the original prints usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def main(argv: Sequence[str]) -> int:
    """Run; the exit code."""
    try:
        flags = build_parser().parse_args(argv)
        if flags.published:
            sys.stdout.write(report())
            return 0
        _compare(flags)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USAGE
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = _Parser(prog="python -m atom_lite.simulation", description=_DESCRIPTION)
    _add_machine(parser.add_argument_group("machine"))
    _add_load(parser.add_argument_group("load"))
    _add_server(parser.add_argument_group("server"))
    parser.add_argument("--seed", type=int, default=0, help="of noise, lengths and arrivals")
    parser.add_argument("--trace", metavar="FILE", help="write the timelines for Perfetto")
    parser.add_argument(
        "--published", action="store_true", help="show ATOM's published ratios beside simulated"
    )
    return parser


def _add_machine(machine: argparse._ArgumentGroup) -> None:
    machine.add_argument(
        "--coefficients",
        metavar="A,B,C,GAMMA",
        help="of t = c + gamma*L + b*x + a*(2*L*x + x^2), in milliseconds. "
        f"Default: ATOM's published ones, {','.join(f'{value:g}' for value in COEFFICIENTS_MS)}",
    )
    machine.add_argument(
        "--decode-ms",
        metavar="ROW,TOKEN",
        help="milliseconds of a decode row, and of a token of its context. Default: 0,0",
    )
    machine.add_argument(
        "--profile", metavar="FILE", help="saved by --dynamic-chunking-profile; one model per stage"
    )
    machine.add_argument("--stages", type=int, metavar="N", help=f"default: {DEFAULT_STAGES}")
    machine.add_argument(
        "--stage-factors", metavar="F,F,...", help="how slow each stage is, such as 1,1,1,1.3"
    )
    machine.add_argument(
        "--hop-ms", type=float, default=0.0, help="from stage to stage and back to the head"
    )
    machine.add_argument(
        "--noise", type=float, default=0.0, help="standard deviation of step times, such as 0.15"
    )
    machine.add_argument("--depth", type=int, metavar="N", help="steps in flight. Default: stages")


def _add_load(load: argparse._ArgumentGroup) -> None:
    load.add_argument(
        "--prompt",
        nargs="+",
        default=["32K", "128K"],
        metavar="TOKENS",
        help="lengths, each a table of its own: 32K, or 4K-64K for any between. Default: 32K 128K",
    )
    load.add_argument("--output-tokens", type=int, default=1, metavar="N", help="default: 1")
    load.add_argument("--requests", type=int, metavar="N", help="default: the concurrency")
    load.add_argument("--concurrency", type=int, default=1, metavar="N", help="at once; default: 1")
    load.add_argument("--rate", type=float, metavar="R", help="Poisson arrivals per second instead")
    load.add_argument(
        "--variation", type=float, default=1.0, help="of arrival gaps: 1 Poisson, more for bursts"
    )
    load.add_argument("--prefixes", type=int, default=0, metavar="N", help="number of shared ones")
    load.add_argument("--prefix-tokens", type=int, default=0, metavar="N", help="of a shared one")


def _add_server(server: argparse._ArgumentGroup) -> None:
    server.add_argument(
        "--policy", nargs="+", default=list(DEFAULT_POLICIES), metavar="P", help=_POLICY_HELP
    )
    server.add_argument(
        "--learn", action="store_true", help="policies start without a model, as in the server"
    )
    server.add_argument(
        "--decode-budget",
        type=int,
        metavar="N",
        help="tokens of a step that holds decodes. Default: the policy's budget",
    )
    server.add_argument("--max-num-seqs", type=int, default=64, metavar="N")


def _compare(flags: argparse.Namespace) -> None:
    contests = [parse_contest(text) for text in flags.policy]
    pipeline = _pipeline(flags)
    timelines: dict[str, Sequence[StageInterval]] = {}
    scenarios = {text: _scenario(flags, pipeline, text) for text in flags.prompt}
    for text, scenario in scenarios.items():
        entries: dict[str, Entry] = {}
        for contest in contests:
            entry = entries[contest.text] = run_contest(scenario, contest)
            timelines[f"{text} {entry.policy}"] = entry.run.intervals
        sys.stdout.write(f"{_title(text, scenario)}\n{contest_table(entries)}\n")
        if flags.learn:
            for name, entry in entries.items():
                sys.stdout.writelines(f"{name}: {line}\n" for line in entry.run.notices)
    if flags.trace is not None:
        write_chrome_trace(Path(flags.trace), timelines)


def _title(text: str, scenario: Scenario) -> str:
    load = f"{scenario.concurrency} at once"
    if scenario.rate_per_second is not None:
        load = f"{scenario.rate_per_second:g} a second"
    count = len(scenario.requests)
    prompts = "1 prompt" if count == 1 else f"{count} prompts"
    return f"{prompts} of {text} tokens, {load}, {scenario.pipeline.num_stages} stages"


def _scenario(flags: argparse.Namespace, pipeline: PipelineSpec, text: str) -> Scenario:
    _at_least("--output-tokens", flags.output_tokens, 1)
    _at_least("--concurrency", flags.concurrency, 1)
    _at_least("--prefixes", flags.prefixes, 0)
    _at_least("--prefix-tokens", flags.prefix_tokens, 0)
    if flags.decode_budget is not None:
        _at_least("--decode-budget", flags.decode_budget, 1)
    count = flags.concurrency if flags.requests is None else flags.requests
    _at_least("--requests", count, 1)
    requests = draw_requests(
        count,
        flags.seed,
        _lengths(text),
        constant(flags.output_tokens),
        num_prefixes=flags.prefixes,
        prefix_tokens=flags.prefix_tokens,
    )
    return Scenario(
        pipeline=pipeline,
        requests=tuple(requests),
        concurrency=flags.concurrency,
        rate_per_second=flags.rate,
        variation=flags.variation,
        learns=flags.learn,
        depth=flags.depth,
        decode_step_tokens=flags.decode_budget,
        max_num_seqs=flags.max_num_seqs,
        seed=flags.seed,
    )


def _lengths(text: str) -> Lengths:
    least, dash, most = text.partition("-")
    return (
        uniform(parse_tokens(least), parse_tokens(most)) if dash else constant(parse_tokens(text))
    )


def _pipeline(flags: argparse.Namespace) -> PipelineSpec:
    return PipelineSpec(
        models=_models(flags),
        hop_seconds=flags.hop_ms / MILLISECONDS_PER_SECOND,
        noise=flags.noise,
        seed=flags.seed,
    )


def _models(flags: argparse.Namespace) -> tuple[LatencyModel, ...]:
    """One per stage: from the profile, or one machine with a factor for each stage."""
    if flags.profile is not None:
        for name in ("coefficients", "decode_ms", "stage_factors"):
            if getattr(flags, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} contradicts --profile; give one")
        return _profile_models(Path(flags.profile), flags.stages)
    factors = [1.0] * (DEFAULT_STAGES if flags.stages is None else flags.stages)
    if flags.stage_factors is not None:
        factors = _numbers("--stage-factors", flags.stage_factors)
        if flags.stages not in (None, len(factors)):
            raise ConfigError(
                f"--stage-factors are for {len(factors)} stages but --stages is {flags.stages}"
            )
    a, b, c, gamma = COEFFICIENTS_MS
    if flags.coefficients is not None:
        a, b, c, gamma = _numbers("--coefficients", flags.coefficients, 4)
    row, token = 0.0, 0.0
    if flags.decode_ms is not None:
        row, token = _numbers("--decode-ms", flags.decode_ms, 2)
    return tuple(
        LatencyModel.from_milliseconds(
            a=a * factor, b=b * factor, c=c * factor, gamma=gamma * factor
        ).with_decodes(
            row * factor / MILLISECONDS_PER_SECOND, token * factor / MILLISECONDS_PER_SECOND
        )
        for factor in factors
    )


def _profile_models(path: Path, num_stages: int | None) -> tuple[LatencyModel, ...]:
    profile = load_profile(path)
    if profile is None:
        raise ConfigError(f"--profile {path}: there is no such file")
    if num_stages not in (None, len(profile.models)):
        raise ConfigError(
            f"--profile {path} is of {len(profile.models)} stages but --stages is {num_stages}"
        )
    return profile.models


def _numbers(flag: str, text: str, count: int | None = None) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or (count is not None and len(values) != count):
        wanted = "numbers" if count is None else f"{count} numbers"
        raise ConfigError(f"{flag} is {text!r}, must be {wanted} with commas between")
    if not all(0.0 <= value < float("inf") for value in values):
        raise ConfigError(f"{flag} is {text!r}, must hold finite numbers of at least 0")
    return values


def _at_least(flag: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{flag} is {value}, must be at least {least}")
