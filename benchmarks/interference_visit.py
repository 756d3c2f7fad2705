"""One visit of the interference benchmark: a server of one arm, started, measured, stopped.

    solo     one long prompt alone: what its prefill takes
    streams  8 streams alone (the control), then long prompts beside them
    traces   requests at random times (open_loop.py)

Everything goes over HTTP to a server of its own. Objectives are kept with the figures, as they are
those of the round. Runs in the benchmark's process.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import uvloop

from benchmarks import report
from benchmarks.figures import figures_of
from benchmarks.peers import servers
from benchmarks.peers.process import running
from benchmarks.service_levels import Objectives, levels_of
from benchmarks.stream_client import LoadError, StreamClient
from benchmarks.target import connect
from benchmarks.visits import shown
from benchmarks.workload_list import WORKLOADS
from benchmarks.workloads import Point, Run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.target import Target

WARM_UP_OUTPUT_TOKENS = 8
TTFT_FACTOR = 3.0  # a first token may take so many times what the prompt takes alone, and
TTFT_SLACK_SECONDS = 0.3  # this much more (Etalon's)
CONTROL, DURING, ALL = "control", "streams", "all"
LONG = "long"


class Shape(NamedTuple):
    """What every visit runs.

    Attributes:
        long_tokens: of a long prompt.
        scale: times as many long prompts and requests as workloads.py says.
        traces: names of open_loop's.
        seed: of all prompts and arrivals.
        seconds: of one visit, at most.
    """

    long_tokens: int
    scale: float
    traces: tuple[str, ...]
    seed: int
    seconds: float


class ArmRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm did in one round; plain values, so that JSON keeps it whole.

    Attributes:
        round: counted from 0.
        arm: its name.
        command: of the server.
        objectives: factor -> TBT objective in seconds, the round's.
        solo_seconds: TTFT of a long prompt alone; None where it failed.
        points: name -> figures (`Figures`, without levels).
        levels: factor -> name -> `Levels`.
        bubbles_share: of the stages' time, idle while work was under way; None on one stage.
        failures: one line each.
    """

    round: int
    arm: str
    command: str
    objectives: dict[str, float]
    solo_seconds: float | None = None
    points: dict[str, dict[str, Any]] = {}
    levels: dict[str, dict[str, dict[str, float]]] = {}
    bubbles_share: float | None = None
    failures: list[str] = []

    def figure(self, point: str, name: str) -> float | None:
        """One figure of one point, None where it was not measured."""
        value = self.points.get(point, {}).get(name)
        return None if value is None else float(value)

    @property
    def control_gap_seconds(self) -> float | None:
        """The median gap of streams alone."""
        return self.figure(CONTROL, "itl_p50")


def visit(
    arm: str,
    round_: int,
    launch_flags: tuple[str, ...],
    objectives: Mapping[int, float] | None,
    shape: Shape,
    setting: Setting,
) -> ArmRun:
    """Start the arm's server, measure, stop it; what fails is part of the answer.

    Args:
        arm: its name.
        round_: counted from 0.
        launch_flags: of the server.
        objectives: factor -> TBT objective; None where this visit's control is to give them.
        shape: what is run.
        setting: the model and where logs go.
    """
    launch = servers.atom_lite(setting.model, setting.dtype, launch_flags)
    print(f"round {round_}, {arm}: starting", file=sys.stderr, flush=True)
    began = time.monotonic()
    log = setting.logs / f"{round_}-{arm}.log"
    run = ArmRun(round=round_, arm=arm, command=shown(launch.command), objectives={})
    try:
        with (
            running(launch, log),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            measured = runner.run(_measure(launch.base_url, shape, setting.factors, objectives))
    except LoadError as error:
        return msgspec.structs.replace(run, failures=[str(error)])
    print(f"  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return msgspec.structs.replace(run, **measured)


class Setting(NamedTuple):
    """What all visits share beside their shape.

    Attributes:
        model: served by all.
        dtype: None keeps a file's own format.
        logs: directory of the servers' logs.
        factors: objectives are so many decode-only gaps.
    """

    model: Path
    dtype: str | None
    logs: Path
    factors: tuple[int, ...]


async def _measure(
    base_url: str, shape: Shape, factors: tuple[int, ...], objectives: Mapping[int, float] | None
) -> dict[str, Any]:
    """The fields of an `ArmRun` that a server gives."""
    client = StreamClient(base_url)
    target = await connect(client, None, "chat")
    deadline = time.perf_counter() + shape.seconds
    solo, prompt_tokens = await _solo(target, shape, deadline)
    points = await _points(target, shape, deadline)
    control = points[CONTROL]
    gap = figures_of(control).itl_p50
    if objectives is None:
        if gap is None:
            raise LoadError("streams alone brought no gaps, so there is no objective")
        objectives = {factor: factor * gap for factor in factors}
    first = TTFT_FACTOR * solo / prompt_tokens
    levels: dict[str, dict[str, dict[str, float]]] = {}
    for factor, seconds in objectives.items():
        kept = Objectives(
            tbt_seconds=seconds, ttft_seconds=TTFT_SLACK_SECONDS, ttft_seconds_per_token=first
        )
        found = {name: levels_of(point, kept) for name, point in points.items()}
        levels[str(factor)] = {name: asdict(one) for name, one in found.items() if one is not None}
    figures = {name: figures_of(point) for name, point in points.items()}
    return {
        "objectives": {str(factor): seconds for factor, seconds in objectives.items()},
        "solo_seconds": solo,
        "points": {name: report.as_json([one])[0] for name, one in figures.items()},
        "levels": levels,
        "bubbles_share": await _bubbles(client),
        "failures": [f"{name}: {line}" for name, f in figures.items() for line in _failed(name, f)],
    }


def _failed(name: str, figures: Any) -> list[str]:
    """Streams are cut off when the long prompts are done; that is no failure."""
    return [] if name in (CONTROL, DURING, ALL) else report.failures([figures])


async def _solo(target: Target, shape: Shape, deadline: float) -> tuple[float, int]:
    """TTFT of a long prompt alone and its tokens, by the second of two; the first one warms up."""
    maker = target.prompt_maker(shape.seed)
    warm = await target.stream(await maker.make("warm-up", 256), WARM_UP_OUTPUT_TOKENS, deadline)
    record = await target.stream(await maker.make("solo", shape.long_tokens), 1, deadline)
    for one in (warm, record):
        if one.error is not None or not one.arrivals:
            raise LoadError(f"a prompt alone failed: {one.error}")
    return record.arrivals[0] - record.started, record.prompt_tokens or shape.long_tokens


async def _points(target: Target, shape: Shape, deadline: float) -> dict[str, Point]:
    run = Run(
        target=target,
        seed=shape.seed,
        deadline=deadline,
        scale=shape.scale,
        points=(shape.long_tokens,),
    )
    control, during, long = await WORKLOADS["interference"].drive(run)
    points = {CONTROL: control, DURING: during, LONG: long}
    points[ALL] = Point(
        name=ALL,
        records=[*during.records, *long.records],
        started=during.started,
        ended=during.ended,
        window=during.window,
    )
    for name in shape.traces:
        points[name] = (await WORKLOADS[name].drive(run))[0]
    return points


async def _bubbles(client: StreamClient) -> float | None:
    """Of the stages' time since the start, the share that they stood idle with work under way."""
    status, answer = await client.fetch("GET", "/server_info")
    if status != 200:
        raise LoadError(f"GET /server_info answered {status}")
    stats = msgspec.json.decode(answer)["stats"]
    busy, bubbles = sum(stats["stage_busy_seconds"]), sum(stats["stage_bubble_seconds"])
    is_pipeline = len(stats["stage_busy_seconds"]) > 1
    return bubbles / (busy + bubbles) if is_pipeline and busy + bubbles > 0 else None
