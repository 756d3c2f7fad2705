"""Compare this server with others in one and the same run.

    python -m benchmarks.peers.install openvino vllm llama
    python -m benchmarks.compare_peers --peers openvino,vllm,llama,transformers

Same model, same client, same prompts; one server at a time, all of them in turn in every round and
another one first each time, because the speed of a shared machine drifts. Three setups:

    plain      weights expanded to --dtype: single, concurrency, shared-prefix
    budget     the same in steps of at most 256 tokens: interference
    quantized  the GGUF file's own format kept: single

A server takes part where it can. Writes OUTPUT.json after every visit (`--resume` goes on with it)
and OUTPUT.md. Exit code 0: each server answered in each setup, whatever the figures are; 1: one
never did, and standard error says which and why; 2: nothing could be measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks import peer_report, report
from benchmarks.peers import servers
from benchmarks.peers.checkpoints import default_gguf
from benchmarks.peers.process import Launch, exit_on_sigterm
from benchmarks.peers.servers import Serving
from benchmarks.stream_client import LoadError
from benchmarks.visits import Conditions, Plan, Visit, visit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BUDGET_TOKENS = 256
WORKLOADS = ("single", "concurrency", "shared-prefix", "interference", "quantized")
QUICK_SCALE = 0.05  # of the requests: one of single, three at a time, one long prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to serve the model, and what is measured then."""

    name: str
    keeps_quantized: bool
    budget: int | None
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The command line's flags."""

    model: Path
    output: Path
    dtype: str
    peers: tuple[str, ...]
    workloads: tuple[str, ...]
    scale: float
    rounds: int
    quick: bool
    resume: bool
    timeout: float
    seed: int
    server_args: tuple[str, ...]


def setups(comparison: Comparison) -> list[Setup]:
    """The setups that the wanted workloads need."""
    lengths, levels = ((128,), (8,)) if comparison.quick else ((), ())
    plain: Plan = {"single": lengths, "concurrency": levels, "shared-prefix": ()}
    plain = {name: points for name, points in plain.items() if name in comparison.workloads}
    kept: Plan = {"single": (128,) if comparison.quick else (128, 4096)}
    found = []
    if plain:
        found.append(Setup(name="plain", keeps_quantized=False, budget=None, plan=plain))
    if "interference" in comparison.workloads:
        plan: Plan = {"interference": ()}
        found.append(Setup(name="budget", keeps_quantized=False, budget=BUDGET_TOKENS, plan=plan))
    if "quantized" in comparison.workloads:
        found.append(Setup(name="quantized", keeps_quantized=True, budget=None, plan=kept))
    return found


def launch(server: str, setup: Setup, comparison: Comparison) -> Launch | None:
    """How to start a server for a setup; None where it cannot serve it."""
    dtype = None if setup.keeps_quantized else comparison.dtype
    if server != peer_report.OURS:
        return servers.peer(
            server, Serving(gguf=comparison.model, dtype=dtype, budget=setup.budget)
        )
    budget = () if setup.budget is None else ("--max-num-batched-tokens", str(setup.budget))
    return servers.atom_lite(comparison.model, dtype, (*budget, *comparison.server_args))


def compare(
    comparison: Comparison, done: Sequence[Visit], save: Callable[[Sequence[Visit]], None]
) -> list[Visit]:
    """All rounds; what is done already is not done again."""
    visits = list(done)
    keys = {one.key for one in visits}
    conditions = Conditions(
        scale=comparison.scale, seed=comparison.seed, timeout=comparison.timeout
    )
    names = (peer_report.OURS, *comparison.peers)
    for name in names:  # a peer that is not installed must not be found out after an hour
        for setup in setups(comparison):
            launch(name, setup, comparison)
    with tempfile.TemporaryDirectory(prefix="atom_lite-peers-") as logs:
        for round_ in range(comparison.rounds):
            turn = round_ % len(names)
            for setup in setups(comparison):
                for name in (*names[turn:], *names[:turn]):
                    start = launch(name, setup, comparison)
                    if start is None or (setup.name, name, round_) in keys:
                        continue
                    log = Path(logs) / f"{round_}-{setup.name}-{name}.log"
                    visits.append(visit(start, setup.name, round_, setup.plan, conditions, log))
                    save(visits)
    return visits


def document(
    comparison: Comparison, visits: Sequence[Visit], argv: Sequence[str]
) -> dict[str, Any]:
    """The comparison as JSON."""
    return {
        "command": report.command_line(argv),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": report.machine(),
        "model": comparison.model.name,
        "dtype": comparison.dtype,
        "scale": comparison.scale,
        "seed": comparison.seed,
        "rows": peer_report.rows(visits),
        "visits": [asdict(one) for one in visits],
    }


def resumed(path: Path, comparison: Comparison) -> list[Visit]:
    """The visits of an earlier run of the same settings.

    Raises:
        LoadError: it cannot be read, or it compared something else.
    """
    try:
        found = msgspec.json.decode(path.read_bytes())
        same = ("model", "dtype", "scale", "seed")
        here = {"model": comparison.model.name} | {
            name: getattr(comparison, name) for name in same[1:]
        }
        other = [name for name in same if found[name] != here[name]]
        visits = msgspec.convert(found["visits"], list[Visit])
    except (OSError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise LoadError(f"--resume: {path.name} cannot be read: {error}") from error
    if other:
        raise LoadError(f"--resume: {path.name} has another {', '.join(other)}")
    return visits


def silent(visits: Sequence[Visit]) -> list[str]:
    """The servers that never answered in a setup, a line for each with its first reason."""
    found = []
    for setup, server in dict.fromkeys((one.setup, one.server) for one in visits):
        mine = [one for one in visits if (one.setup, one.server) == (setup, server)]
        if not any(one.is_answered for one in mine):
            reasons = [line for one in mine for line in one.failures]
            reason = " ".join((reasons or ["no request was sent"])[0].split())
            found.append(f"{server} answered nothing in setup {setup}: {reason}")
    return found


def exit_code(visits: Sequence[Visit]) -> int:
    """0: all servers were measured; 1: some were; 2: none was."""
    if not any(one.is_answered for one in visits):
        return 2
    return 1 if silent(visits) else 0


def parse_comparison(argv: Sequence[str]) -> Comparison:
    """Flags to a comparison.

    Raises:
        LoadError: a flag has no sense.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--model", type=Path, help="GGUF file; default: SmolLM2's package")
    add(
        "--output",
        type=Path,
        default=Path("benchmarks/results/compare-peers"),
        help="path without suffix; .json and .md are written",
    )
    add("--peers", default=",".join(servers.PEERS), help="comma-separated; default: all")
    add("--workloads", default=",".join(WORKLOADS), help="comma-separated; default: all")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    add("--scale", type=float, default=1.0, help="times as many requests")
    add("--rounds", type=int, default=9, help="visits to each server, in turn")
    add("--quick", action="store_true", help="one round, few points, few requests")
    add("--resume", action="store_true", help="go on with OUTPUT.json")
    add("--timeout", type=float, default=1800.0, help="seconds of each workload")
    add("--seed", type=int, help="of the prompts; default: a fresh one (resumed: its own)")
    add("server_args", nargs="*", help="after --: further flags for atom_lite.serve")
    options = vars(parser.parse_args(argv))
    for name, known in (("peers", tuple(servers.PEERS)), ("workloads", WORKLOADS)):
        options[name] = tuple(word for word in options[name].split(",") if word)
        if unknown := set(options[name]) - set(known):
            raise LoadError(f"--{name}: {sorted(unknown)} are none of {', '.join(known)}")
    if options["quick"]:
        options |= {"rounds": 1, "scale": QUICK_SCALE}
    if options["rounds"] < 1 or options["scale"] <= 0:
        raise LoadError("--rounds must be at least 1 and --scale above 0")
    if options["seed"] is None:
        options["seed"] = report.resumed_seed(
            options["output"].with_suffix(".json"), resume=options["resume"]
        )
    options["model"] = (options["model"] or default_gguf()).resolve()
    return Comparison(**options | {"server_args": tuple(options["server_args"])})


def main() -> None:
    """The command line."""
    exit_on_sigterm()
    try:
        comparison = parse_comparison(sys.argv[1:])
        path = comparison.output.with_suffix(".json")

        def save(visits: Sequence[Visit]) -> None:
            found = document(comparison, visits, sys.argv)
            report.write_pages(path, found, peer_report.markdown(found, visits))

        done = resumed(path, comparison) if comparison.resume and path.exists() else []
        visits = compare(comparison, done, save)
        save(visits)
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(path.with_suffix(".md").read_text())
    for line in silent(visits):
        print(f"error: {line}", file=sys.stderr)
    sys.exit(exit_code(visits))


if __name__ == "__main__":
    main()
