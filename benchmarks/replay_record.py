"""A replay study as JSON and back, with what it says of each pipeline and length. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.simulation.replay import HopCost, Measurements, Probe, median_of
from benchmarks.chunk_arms import is_fixed
from benchmarks.paired import Ratio
from benchmarks.replay_study import Point, Study, StudySettings, ratio_to_best

SINGLE_ARMS = ("atom", "sglang")


def study_json(study: Study) -> dict[str, Any]:
    """Everything that was measured; `results_json` says what it means."""
    kept = study.measurements
    return {
        "splits": {str(stages): list(split) for stages, split in study.settings.splits.items()},
        "clock": study.settings.clock,
        "planner_budget_tokens": study.settings.budget_tokens,
        "rounds": study.rounds_done,
        "draw_seconds": kept.draw_seconds,
        "hop": kept.hop._asdict(),
        "models": {
            str(stages): [asdict(model) for model in models]
            for stages, models in study.models.items()
        },
        "samples": [[*probe, samples] for probe, samples in sorted(kept.samples.items())],
        "cuts": [
            {"stages": point[0], "tokens": point[1], "arms": cuts}
            for point, cuts in study.cuts.items()
        ],
    }


def results_json(study: Study) -> list[dict[str, Any]]:
    """The result at each pipeline and length; takes seconds, for the intervals."""
    return [result_json(study, point) for point in study.cuts]


def settings_from(document: dict[str, Any]) -> StudySettings:
    """What a whole document's study was about, to read it; it measures nothing any more."""
    record = document["replay"]
    return StudySettings(
        splits={int(stages): tuple(split) for stages, split in record["splits"].items()},
        lengths=tuple(document["lengths"]),
        arms=(),
        budget_tokens=record["planner_budget_tokens"],
        rounds=record["rounds"],
        seconds=0.0,
        clock=record["clock"],
        seed=document["seed"],
    )


def study_from(document: dict[str, Any], settings: StudySettings) -> Study:
    """The study that a document holds, to go on with."""
    samples = {Probe(*row[:3]): list(row[3]) for row in document["samples"]}
    return Study(
        settings=settings,
        measurements=Measurements(
            samples=samples,
            draw_seconds=document["draw_seconds"],
            hop=HopCost(**document["hop"]),
        ),
        cuts={
            (entry["stages"], entry["tokens"]): {
                arm: tuple(sizes) for arm, sizes in entry["arms"].items()
            }
            for entry in document["cuts"]
        },
        models={
            int(stages): tuple(LatencyModel(**model) for model in models)
            for stages, models in document["models"].items()
        },
        rounds_done=document["rounds"],
    )


def result_json(study: Study, point: Point) -> dict[str, Any]:
    """Makespans by arm, and makespan's ratio to the best of each family."""
    stages, tokens = point
    arms = {}
    for arm, sizes in study.cuts[point].items():
        taken = study.replayed(point, arm)
        arms[arm] = {
            "seconds": taken.makespan_seconds,
            "samples": study.num_samples(point, arm),
            "chunks": len(sizes),
            "busy_share": sum(taken.busy_seconds) / (taken.makespan_seconds * stages),
        }
    return {
        "stages": stages,
        "tokens": tokens,
        "arms": arms,
        "makespan_over": {
            name: None if ratio is None else ratio._asdict()
            for name, ratio in _ratios(study, point).items()
        },
    }


def _ratios(study: Study, point: Point) -> dict[str, Ratio | None]:
    """To the best fixed chunk, the best of ATOM's grid, and each arm that has no family."""
    plain = [arm for arm in study.cuts[point] if is_fixed(arm) or arm in SINGLE_ARMS]
    return {
        "best fixed": ratio_to_best(study, point, "fixed-"),
        "atom tuned in hindsight": ratio_to_best(study, point, "atom"),
    } | {arm: _plain(study, point, arm) for arm in plain}


def _plain(study: Study, point: Point, arm: str) -> Ratio | None:
    if "makespan" not in study.cuts[point]:
        return None
    times = study.makespans(point, [arm, "makespan"], median_of)
    return Ratio(times["makespan"] / times[arm], None, None, study.num_samples(point, arm))
