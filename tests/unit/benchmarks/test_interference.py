"""What the interference benchmark makes of its visits, by hand; the visits need servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from atom_lite.chunking.calibrator import StepSample
from atom_lite.chunking.controller import StaticController
from atom_lite.chunking.latency_model import Chunk
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.cli import parse_config
from benchmarks import interference_report
from benchmarks.claims import merge_claims
from benchmarks.interference import parse_options
from benchmarks.interference_arms import ALL_ARMS, BASE, FACTORS, check_arms, flags_of
from benchmarks.interference_claims import engine_claims
from benchmarks.interference_timeline import StepRecorder, TimedStep, gaps, timed
from benchmarks.interference_visit import ALL, CONTROL, DURING, LONG, ArmRun
from benchmarks.open_loop import TRACES, planned
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from pathlib import Path

OBJECTIVES = {3: 0.3, 6: 0.6}


def a_run(arm: str, round_: int, gap: float, ttft: float, solo: float = 1.0) -> ArmRun:
    figures = {"itl_p50": 0.1, "itl_p99": gap, "itl_max": 2 * gap, "ttft_p50": ttft}
    calm = {"itl_p50": 0.1, "itl_p99": 0.15}
    level = {"late_gap_share": gap / 10, "fluidity_paper": 1 - gap / 10, "goodput_per_second": 1.0}
    return ArmRun(
        round=round_,
        arm=arm,
        command="serve",
        objectives={str(factor): seconds for factor, seconds in OBJECTIVES.items()},
        solo_seconds=solo,
        points={CONTROL: calm, DURING: figures, LONG: figures, ALL: figures},
        levels={str(factor): {DURING: level, ALL: level} for factor in FACTORS},
    )


def runs_of(arms: dict[str, tuple[float, float]], rounds: int = 4) -> list[ArmRun]:
    """Every arm in every round, with the gap and the TTFT that it has in all of them."""
    return [a_run(arm, n, *figures) for n in range(rounds) for arm, figures in arms.items()]


def test_every_arm_is_a_server_that_the_command_line_takes() -> None:
    for arm in ALL_ARMS:
        parse_config(list(flags_of(arm, OBJECTIVES)))
    with pytest.raises(LoadError, match="no 'stall-free-many'"):
        flags_of("stall-free-many", OBJECTIVES)
    with pytest.raises(LoadError, match="no 'slo-4x'"):
        flags_of("slo-4x", OBJECTIVES)
    with pytest.raises(LoadError, match=BASE):
        check_arms(["orca"])


def test_an_objective_is_a_flag_of_its_arm() -> None:
    flags = flags_of("slo-3x", OBJECTIVES)
    assert flags[flags.index("--tbt-slo-ms") + 1] == "300.0"


def test_quick_gives_way_to_what_is_asked_for() -> None:
    quick = parse_options(["--quick", "--rounds", "2", "--seed", "1", "--model", "m"])
    assert (quick.rounds, quick.traces, quick.seed) == (2, (), 1)
    with pytest.raises(LoadError, match="--rounds must be above 0"):
        parse_options(["--rounds", "0", "--model", "m"])
    with pytest.raises(LoadError, match="--traces"):
        parse_options(["--traces", "steady", "--model", "m"])


def test_the_static_budget_is_the_fastest_of_those_with_no_longer_gaps() -> None:
    arms = {
        "stall-free-64": (0.2, 9.0),
        "stall-free-128": (0.3, 8.0),
        BASE: (0.5, 7.0),
        "prefill-first": (0.1, 1.0),  # no static budget
        "slo-3x": (0.3, 4.0),
    }
    runs = runs_of(arms)
    assert interference_report.static_of_same_gap(runs, "slo-3x") == "stall-free-128"
    text = interference_report.markdown(
        {
            "machine": {"cpu": "c", "cores": 2},
            "command": "x",
            "model": "m",
            "long_tokens": 6000,
            "seed": 1,
            "traces": [],
        },
        runs,
    )
    # 0.3 s of the 0.33 + 0.05 s that are allowed, and half the TTFT of the static budget.
    assert "| slo-3x | 300.0 | 0.789" in text and "| stall-free-128 | 0.500" in text


def test_claims_are_judged_by_the_visits_and_keep_the_rows_of_others(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    other = {"name": "9-other", "where": "simulator", "claim": "c", "found": "f"}
    other |= {"verdict": "holds", "because": "", "command": "x"}
    path.with_suffix(".json").write_text(json.dumps({"claims": [other]}))
    arms = {BASE: (0.2, 5.0), "prefill-first": (0.9, 4.0), "hybrid-only": (0.9, 4.0)}
    claims = engine_claims("run", runs_of(arms))
    assert [claim.name for claim in claims] == ["1-long-prompt-stalls-streams", "3-naive-hybrid"]
    text = merge_claims(path, claims)
    assert all(claim.verdict == "holds" for claim in claims)
    assert "x4.500 [4.500, 4.500]" in text and "| c | simulator | f | holds | `x` |" in text
    short_stall = runs_of({BASE: (0.2, 5.0), "prefill-first": (0.21, 4.0)})
    assert engine_claims("run", short_stall)[0].verdict == "does not hold here"
    path.with_suffix(".json").write_text("[]")
    with pytest.raises(LoadError, match="no table of claims"):
        merge_claims(path, claims)


@pytest.mark.parametrize("name", TRACES)
def test_traces_are_the_same_for_a_seed_and_come_in_order(name: str) -> None:
    requests = planned(name, 40, 3)
    assert requests == planned(name, 40, 3) != planned(name, 40, 4)
    times = [request.arrival_seconds for request in requests]
    assert len(times) == 40 and times == sorted(times)


def test_the_burst_of_the_varying_trace_is_four_times_as_dense() -> None:
    times = [request.arrival_seconds for request in planned("varying", 4000, 0)]
    quiet = times[599] - times[0]
    burst = times[3399] - times[601]
    assert (2798 / burst) / (599 / quiet) == pytest.approx(4.0, rel=0.1)


def test_every_step_is_written_down_whatever_the_policy_wants_to_know() -> None:
    recorder = StepRecorder(StaticController(FixedPlanner(), "fixed"))
    assert recorder.wants_sample(num_sequences=9, num_prefills=1)
    contents = StepSample(
        chunks=(Chunk(0, 256), Chunk(64, 8)),
        stage_seconds=(0.5,),
        decode_rows=8,
        decode_context_tokens=800,
    )
    assert recorder.record(contents) == []
    ((_, kept),) = recorder.steps
    assert timed(2.0, kept) == TimedStep(2.0, 0.5, 8, 264)
    assert isinstance(recorder.planner, FixedPlanner)
    assert gaps([1.0, 1.5, 3.0]) == [(1.5, 0.5), (3.0, 1.5)]
