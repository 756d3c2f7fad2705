"""What long prompts cost the streams beside them, under every batching policy and budget.

    python -m benchmarks.interference --quick
    python -m benchmarks.interference --output benchmarks/results/interference

Every arm (interference_arms.py) is a server of its own over HTTP; rounds visit all of them in turn,
another one first each time but for the base, whose streams alone give the round its objectives: 3
and 6 times their median gap. Each visit runs the same prompts (interference_visit.py). Then one
pass inside this process records the steps of every arm for the timelines (interference_timeline).

Writes OUTPUT.json after every visit, then OUTPUT.md, OUTPUT.png where matplotlib is installed, and
its rows of the claims table (scheduling_claims). `--resume` goes on with OUTPUT.json. Exit code 0
whatever the figures are; 2: nothing could be measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from atom_lite.errors import AtomLiteError
from benchmarks import interference_report, report
from benchmarks.claims import merge_claims
from benchmarks.interference_arms import (
    ALL_ARMS,
    BASE,
    FACTORS,
    QUICK_ARMS,
    check_arms,
    flags_of,
    objective_seconds,
)
from benchmarks.interference_claims import engine_claims
from benchmarks.interference_timeline import Timeline, record_timelines
from benchmarks.interference_visit import ArmRun, Setting, Shape, visit
from benchmarks.open_loop import TRACES
from benchmarks.peers.checkpoints import default_gguf
from benchmarks.peers.process import exit_on_sigterm
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence

SAME = ("model", "dtype", "seed", "long_tokens", "scale", "traces")
QUICK = {"rounds": 1, "long_tokens": 1000, "scale": 0.25, "traces": (), "arms": QUICK_ARMS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags, defaults filled in."""

    model: Path
    dtype: str | None
    output: Path
    claims: Path
    arms: tuple[str, ...]
    rounds: int
    long_tokens: int
    scale: float
    traces: tuple[str, ...]
    timelines: bool
    resume: bool
    timeout: float
    budget_minutes: float
    seed: int
    server_args: tuple[str, ...]


@dataclass(slots=True)
class Session:
    """One document: its options, what is in it, and the visits that fill it."""

    options: Options
    argv: list[str]
    runs: list[ArmRun] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """Of the document."""
        return self.options.output.with_suffix(".json")

    def run(self) -> None:
        """All visits that are still to do, then the timelines."""
        options = self.options
        ends = time.monotonic() + 60.0 * options.budget_minutes
        with tempfile.TemporaryDirectory(prefix="atom_lite-interference-") as logs:
            setting = Setting(options.model, options.dtype, Path(logs), FACTORS)
            for round_ in range(options.rounds):
                for arm in self._order(round_):
                    if time.monotonic() > ends:
                        break
                    self._visit(arm, round_, setting)
        objectives = self._objectives(0)
        if options.timelines and objectives is not None:
            self._record_timelines(objectives)

    def save(self) -> None:
        """Write the document as it is now."""
        report.write_json(self.path, self.document())

    def document(self) -> dict[str, Any]:
        """The benchmark as JSON."""
        options = self.options
        return {
            "command": report.command_line(self.argv),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": report.machine(),
            "model": options.model.name,
            "dtype": options.dtype,
            "seed": options.seed,
            "long_tokens": options.long_tokens,
            "scale": options.scale,
            "traces": list(options.traces),
            "runs": msgspec.to_builtins(self.runs),
            "timelines": msgspec.to_builtins(self.timelines),
        }

    def load(self) -> None:
        """Take up the document of an earlier run of the same settings.

        Raises:
            LoadError: it cannot be read, or it measured something else.
        """
        try:
            found = msgspec.json.decode(self.path.read_bytes())
            here = self.document()
            other = [name for name in SAME if found[name] != here[name]]
            self.runs = msgspec.convert(found["runs"], list[ArmRun])
            self.timelines = msgspec.convert(found["timelines"], list[Timeline])
        except (OSError, KeyError, TypeError, msgspec.MsgspecError) as error:
            raise LoadError(f"--resume: {self.path.name} cannot be read: {error}") from error
        if other:
            raise LoadError(f"--resume: {self.path.name} has another {', '.join(other)}")

    def _order(self, round_: int) -> list[str]:
        """The base first, for its objectives; the others take turns."""
        others = [arm for arm in self.options.arms if arm != BASE]
        turn = round_ % max(1, len(others))
        return [BASE, *others[turn:], *others[:turn]]

    def _visit(self, arm: str, round_: int, setting: Setting) -> None:
        if any((run.round, run.arm) == (round_, arm) for run in self.runs):
            return
        objectives = self._objectives(round_)
        if objectives is None and arm != BASE:
            return  # the base has failed in this round; its failure is in the document
        options = self.options
        shape = Shape(
            options.long_tokens, options.scale, options.traces, options.seed, options.timeout
        )
        flags = self._flags(arm, objectives)
        run = visit(arm, round_, flags, objectives, shape, setting)
        for line in run.failures:
            print(f"{arm}: {line}", file=sys.stderr, flush=True)
        self.runs.append(run)
        self.save()

    def _record_timelines(self, objectives: dict[int, float]) -> None:
        options = self.options
        kept = {line.arm for line in self.timelines}
        flags = {arm: self._flags(arm, objectives) for arm in options.arms if arm not in kept}
        kind = () if options.dtype is None else ("--dtype", options.dtype)
        model = ("--model", str(options.model), *kind)
        for line in record_timelines(flags, model, options.long_tokens):
            self.timelines.append(line)
            self.save()

    def _flags(self, arm: str, objectives: dict[int, float] | None) -> tuple[str, ...]:
        return (*flags_of(arm, objectives or {}), *self.options.server_args)

    def _objectives(self, round_: int) -> dict[int, float] | None:
        """Those of a round, once its base has run."""
        for run in self.runs:
            gap = run.control_gap_seconds
            if (run.round, run.arm) == (round_, BASE) and gap is not None:
                return {factor: objective_seconds(factor, gap) for factor in FACTORS}
        return None


def parse_options(argv: Sequence[str]) -> Options:
    """Flags to options.

    Raises:
        LoadError: a flag has no sense.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add = parser.add_argument
    results = Path("benchmarks/results")
    add("--model", type=Path, help="GGUF file or directory; default: SmolLM2's package")
    add("--dtype", choices=("float32", "bfloat16"), help="default: the server's own choice")
    add("--output", type=Path, default=results / "interference", help="path without suffix")
    add("--claims", type=Path, default=results / "scheduling-claims", help="path without suffix")
    add("--arms", type=_words, default=ALL_ARMS, help=f"of {', '.join(ALL_ARMS)}")
    add("--rounds", type=int, default=9, help="visits to each arm, in turn")
    add("--long-tokens", type=int, default=6000, help="of the prompts beside the streams")
    add("--scale", type=float, default=1.0, help="times as many long prompts and requests")
    add("--traces", type=_words, default=tuple(TRACES), help="of poisson, bursty, varying")
    add("--no-timelines", dest="timelines", action="store_false", help="skip their pass")
    add("--quick", action="store_true", help="one round of small visits: about three minutes")
    add("--resume", action="store_true", help="go on with OUTPUT.json")
    add("--timeout", type=float, default=900.0, help="seconds of each visit")
    add("--budget-minutes", type=float, default=600.0, help="no visit begins after this")
    add("--seed", type=int, help="of the prompts; default: a fresh one (resumed: its own)")
    add("server_args", nargs="*", help="after --: further flags for atom_lite.serve")
    if "--quick" in argv:
        parser.set_defaults(**QUICK)
    flags = vars(parser.parse_args(argv))
    del flags["quick"]
    check_arms(flags["arms"])
    if unknown := set(flags["traces"]) - set(TRACES):
        raise LoadError(f"--traces: {sorted(unknown)} are none of {', '.join(TRACES)}")
    for name in ("rounds", "long_tokens", "scale"):
        if not flags[name] > 0:
            raise LoadError(f"--{name.replace('_', '-')} must be above 0, got {flags[name]}")
    if flags["seed"] is None:
        flags["seed"] = report.resumed_seed(
            flags["output"].with_suffix(".json"), resume=flags["resume"]
        )
    flags["model"] = (flags["model"] or default_gguf()).resolve()
    flags["server_args"] = tuple(flags["server_args"])
    return Options(**flags)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def main() -> None:
    """The command line."""
    exit_on_sigterm()
    try:
        options = parse_options(sys.argv[1:])
        session = Session(options, sys.argv)
        if options.resume and session.path.exists():
            session.load()
        session.run()
        session.save()
        document = session.document()
        text = interference_report.write_reports(
            document, session.runs, session.timelines, options.output
        )
        merge_claims(options.claims, engine_claims(document["command"], session.runs))
    except (LoadError, AtomLiteError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(text)
    sys.exit(0 if any(run.points for run in session.runs) else 2)


if __name__ == "__main__":
    main()
