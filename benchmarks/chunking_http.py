"""TTFT over HTTP against the running server: one stage with all cores beside two stages.

The servers run one after the other, never together, and take turns over the visits. Each answers a
few warm-up prompts first, which is what makespan calibrates itself on; every prompt is new, so the
prefix cache finds nothing. Confirms what `chunking_pairs` measures more finely.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import uvloop

from benchmarks.peers import servers
from benchmarks.peers.process import running
from benchmarks.stream_client import LoadError, StreamClient
from benchmarks.target import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.peers.process import Launch

WARM_PROMPTS = 4
REQUEST_SECONDS = 600.0


class ServerArm(NamedTuple):
    """A server's name in the table and its flags."""

    name: str
    flags: tuple[str, ...]


class HttpRun(msgspec.Struct, frozen=True, kw_only=True):
    """One visit to one server.

    Attributes:
        visit: counted from 0.
        arm: of the server.
        command: flags that it was started with.
        ttft_seconds: by prompt tokens.
        chunking: what `/server_info` says of its chunk sizes afterwards.
    """

    visit: int
    arm: str
    command: list[str]
    ttft_seconds: dict[int, float]
    chunking: Any = None


class HttpSettings(NamedTuple):
    """What is run.

    Attributes:
        model: served by all.
        dtype: of all.
        lengths: prompt tokens.
        arms: the servers.
        visits: to each.
        seconds: time after which no further visit is begun.
        seed: of the prompts.
    """

    model: Path
    dtype: str
    lengths: tuple[int, ...]
    arms: tuple[ServerArm, ...]
    visits: int
    seconds: float
    seed: int


def server_arms(best_fixed_tokens: int, extra: tuple[str, ...]) -> tuple[ServerArm, ...]:
    """One stage, the feature with no other flag, and two stages with the best fixed chunk."""
    budget = ("--max-num-batched-tokens", str(best_fixed_tokens))
    return (
        ServerArm("PP1", extra),
        ServerArm("PP2 makespan", ("--enable-dynamic-chunking", *extra)),
        ServerArm(
            f"PP2 fixed-{best_fixed_tokens}", ("--pipeline-parallel-size", "2", *budget, *extra)
        ),
    )


def run_visits(
    settings: HttpSettings, runs: Iterable[HttpRun], save: Callable[[list[HttpRun]], None]
) -> list[HttpRun]:
    """All visits that `runs` does not hold yet."""
    kept = list(runs)
    deadline = time.monotonic() + settings.seconds
    logs = Path(tempfile.mkdtemp(prefix="atom_lite-chunking-"))
    for index in range(settings.visits):
        for arm in settings.arms:
            if any((run.visit, run.arm) == (index, arm.name) for run in kept):
                continue
            if time.monotonic() > deadline:
                return kept
            launch = servers.atom_lite(settings.model, settings.dtype, arm.flags)
            print(f"{arm.name}: visit {index + 1}", file=sys.stderr)
            with running(launch, logs / f"{index}-{arm.name.replace(' ', '-')}.log"):
                kept.append(_visit(settings, arm, index, launch))
            save(kept)
    shutil.rmtree(logs)  # kept when a visit failed: its error names the log's tail
    return kept


def as_json(runs: Iterable[HttpRun]) -> dict[str, Any]:
    """All visits, and each server's median TTFT by prompt length."""
    kept = list(runs)
    medians: dict[str, dict[int, float]] = {}
    for arm in dict.fromkeys(run.arm for run in kept):
        visits = [run.ttft_seconds for run in kept if run.arm == arm]
        medians[arm] = {
            tokens: statistics.median(visit[tokens] for visit in visits) for tokens in visits[0]
        }
    return {"runs": msgspec.to_builtins(kept, str_keys=True), "median_ttft_seconds": medians}


def _visit(settings: HttpSettings, arm: ServerArm, index: int, launch: Launch) -> HttpRun:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        times, chunking = runner.run(_measure(settings, f"{arm.name}/{index}", launch.base_url))
    return HttpRun(
        visit=index, arm=arm.name, command=list(arm.flags), ttft_seconds=times, chunking=chunking
    )


async def _measure(
    settings: HttpSettings, name: str, base_url: str
) -> tuple[dict[int, float], Any]:
    client = StreamClient(base_url)
    target = await connect(client, None, "completions")
    maker = target.prompt_maker(settings.seed)
    middle = sorted(settings.lengths)[len(settings.lengths) // 2]
    lengths = [*[middle] * WARM_PROMPTS, *settings.lengths]
    times: dict[int, float] = {}
    for position, tokens in enumerate(lengths):
        prompt = await maker.make(f"{name}/{position}", tokens)
        record = await target.stream(prompt, 1, time.perf_counter() + REQUEST_SECONDS)
        if record.error is not None or not record.arrivals:
            raise LoadError(f"{name}: a prompt of {tokens} tokens failed: {record.error}")
        times[tokens] = record.arrivals[0] - record.started  # the last of a length counts
    status, answer = await client.fetch("GET", "/server_info")
    if status != 200:
        raise LoadError(f"{name}: GET /server_info answered {status}")
    return times, msgspec.json.decode(answer)["stats"]["chunking"]
