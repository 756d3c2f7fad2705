"""Chunk-size policies against each other over pipeline stages: TTFT, throughput, gaps.

    python -m benchmarks.dynamic_chunking --mode all --output benchmarks/results/dynamic-chunking

    pairs    real PP2, in interleaved pairs: makespan and the best fixed chunk  (chunking_pairs)
    replay   PP2, PP4, PP8 from times measured on two cores                     (replay_study)
    http     PP1 beside PP2, over HTTP against the running server               (chunking_http)
    load     4 and 16 prompts at once, and streams beside a long prompt         (chunking_load)

Writes OUTPUT.json after every round, then OUTPUT.md, plots as text and, where matplotlib is
installed, as PNG, and a Chrome trace. `--resume` takes up a document where it ended; parts that
`--mode` does not name stay as they are in it. Prompts of 16K and 32K tokens need a model with that
context: `--model DIR --load-format dummy --lengths 16384,32768`, DIR with a config.json.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from atom_lite.config import Config
from atom_lite.errors import AtomLiteError
from atom_lite.models.checkpoint import resolve_checkpoint
from atom_lite.models.partition import partition_layers
from atom_lite.models.spec import load_spec
from atom_lite.simulation.replay_machine import ReplayMachine, calibrated
from benchmarks import chunking_http, chunking_load, chunking_pairs, report
from benchmarks.chunk_arms import FIXED, is_fixed
from benchmarks.chunking_estimate import estimated_minutes
from benchmarks.chunking_options import Options, parse_options
from benchmarks.chunking_report import write_reports
from benchmarks.peers.process import exit_on_sigterm
from benchmarks.pipeline_arms import LEARNER, PairedPipeline
from benchmarks.replay_record import results_json, study_from, study_json
from benchmarks.replay_study import Study, StudySettings, run_study
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

DEFAULT_BEST_FIXED = 256


class Session:
    """One document: its options, what is in it, and the parts that fill it."""

    def __init__(self, options: Options, argv: Sequence[str]) -> None:
        """Read the old document, or begin a new one."""
        self.options = options
        self.path: Path = options.output.with_suffix(".json")
        self.document: dict[str, Any] = {}
        if options.resume:
            self.document = _read(self.path)
            self.options = options._replace(seed=self.document["seed"])
        self.spec = load_spec(
            resolve_checkpoint(str(options.model), revision=None, load_format=options.load_format)
        )
        longest = self.spec.max_position_embeddings - 1  # room for the token that is waited for
        lengths = tuple(dict.fromkeys(min(tokens, longest) for tokens in options.lengths))
        self.options = self.options._replace(lengths=lengths)
        self.document |= {
            "command": report.command_line(argv),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": report.machine(),
            "model": options.model.name,
            "dtype": options.dtype,
            "seed": self.options.seed,
            "lengths": list(lengths),
        }
        self.splits = {
            stages: tuple(s.count for s in partition_layers(self.spec, stages))
            for stages in options.stages
            if stages <= self.spec.num_layers
        }

    def run(self) -> None:
        """The parts that the mode names, cheapest to lose last."""
        parts: dict[str, Callable[[], None]] = {
            "pairs": self.pairs,
            "replay": self.replay,
            "http": self.http,
            "load": self.load,
        }
        for name, part in parts.items():
            if self.options.mode in (name, "all"):
                print(f"{name}: begins", file=sys.stderr)
                part()

    def pairs(self) -> None:
        """See chunking_pairs."""
        with self._pipeline() as pipeline:
            self._pairs(pipeline).run()

    def replay(self) -> None:
        """See replay_study."""
        options = self.options
        settings = StudySettings(
            splits=self.splits,
            lengths=options.lengths,
            arms=options.arms,
            budget_tokens=options.planner_budget,
            rounds=options.replay_rounds,
            seconds=options.budget_seconds,
            clock=options.replay_clock,
            seed=options.seed,
        )
        longest = max(options.lengths)
        config = replace(self._config(), model=replace(self._config().model, threads=1))

        def keep(study: Study) -> None:
            print(f"replay: round {study.rounds_done}", file=sys.stderr)
            self.document["replay"] = study_json(study)
            self.save()

        with ReplayMachine(config, list(self.splits.values()), longest) as machine:
            old = self.document.get("replay")
            study = (
                study_from(old, settings)
                if old is not None
                else Study(settings=settings, measurements=calibrated(machine, longest))
            )
            run_study(machine, study, keep)
        self.document["replay"]["results"] = results_json(study)
        self.save()

    def http(self) -> None:
        """See chunking_http."""
        options = self.options
        best = self._best_fixed()
        settings = chunking_http.HttpSettings(
            model=options.model,
            dtype=options.dtype,
            lengths=options.lengths,
            arms=chunking_http.server_arms(best, options.server_args),
            visits=options.visits,
            seconds=options.budget_seconds,
            seed=options.seed,
        )

        def keep(runs: list[chunking_http.HttpRun]) -> None:
            self.document["http"] = chunking_http.as_json(runs)
            self.save()

        old = self.document.get("http", {}).get("runs", [])
        kept = msgspec.convert(old, list[chunking_http.HttpRun], strict=False)
        keep(chunking_http.run_visits(settings, kept, keep))

    def load(self) -> None:
        """See chunking_load."""
        options = self.options
        settings = chunking_load.LoadSettings(
            arms=options.arms,
            longest_tokens=max(options.lengths),
            equal_arm=self._equal_fixed(),
            levels=options.levels,
            rounds=options.load_rounds,
            seconds=options.budget_seconds,
            seed=options.seed,
        )
        old = self.document.get("load", {}).get("runs", [])
        with self._pipeline() as pipeline:
            self._pairs(pipeline).warm()

            def keep() -> None:
                self.document["load"] = chunking_load.as_json(load)
                self.save()

            kept = msgspec.convert(old, list[chunking_load.LoadRun])
            load = chunking_load.LoadRuns(settings, pipeline, kept, keep)
            load.run()

    def save(self) -> None:
        """Write the document as it is now."""
        report.write_json(self.path, self.document)

    def _config(self) -> Config:
        base = Config()
        model = replace(
            base.model,
            model=str(self.options.model),
            dtype=self.options.dtype,
            load_format=self.options.load_format,
            max_model_len=max(self.options.lengths) + 1,
        )
        return replace(base, model=model)

    def _pipeline(self) -> PairedPipeline:
        return PairedPipeline(
            self._config(),
            longest_tokens=max(self.options.lengths),
            budget_tokens=self.options.planner_budget,
        )

    def _pairs(self, pipeline: PairedPipeline) -> chunking_pairs.Pairs:
        options = self.options
        settings = chunking_pairs.PairSettings(
            lengths=options.lengths,
            arms=options.arms,
            rounds=options.rounds,
            seconds=options.budget_seconds,
            seed=options.seed,
        )

        def keep() -> None:
            self.document["pairs"] = chunking_pairs.as_json(pairs)
            self.save()

        old = self.document.get("pairs", {}).get("runs", [])
        kept = msgspec.convert(old, list[chunking_pairs.PairRun])
        pairs = chunking_pairs.Pairs(settings, pipeline, kept, keep)
        return pairs

    def _best_fixed(self) -> int:
        """Tokens of the chunk that was best at the longest prompt, by pairs or by replay."""
        for result in reversed(self.document.get("pairs", {}).get("results", [])):
            if result["best_fixed"] is not None:
                return int(result["best_fixed"].removeprefix("fixed-"))
        return DEFAULT_BEST_FIXED

    def _equal_fixed(self) -> str:
        """The fixed arm whose time at the longest prompt is nearest to makespan's."""
        results = self.document.get("pairs", {}).get("results", [])
        medians: dict[str, float] = results[-1]["median_seconds"] if results else {}
        ours = medians.get(LEARNER)
        if ours is None:
            return f"{FIXED}{self._best_fixed()}"
        fixed = {arm: seconds for arm, seconds in medians.items() if is_fixed(arm)}
        return min(fixed, key=lambda arm: abs(fixed[arm] - ours))


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LoadError(f"--resume: {path.name} cannot be read: {error}") from error
    return document


def main() -> None:
    """The command line."""
    exit_on_sigterm()
    try:
        session = Session(parse_options(sys.argv[1:]), sys.argv)
        for part, minutes in estimated_minutes(session.options, session.splits).items():
            print(f"{part}: about {minutes:.0f} min on two quiet cores", file=sys.stderr)
        session.run()
        print(write_reports(session.document, session.options.output))
    except (LoadError, AtomLiteError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
