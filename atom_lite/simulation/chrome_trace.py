"""A pipeline's timeline as a Chrome trace: open it in Perfetto or in chrome://tracing.

One process per run (a policy, say), one thread per stage, one box per microbatch; the gaps between
boxes are the bubbles. The record is plain, so that the simulator, replay and the benchmarks all
write their timelines with it. Runs offline; pure but for `write_chrome_trace`.
Source: the Trace Event Format, complete events ("ph": "X") and metadata ("ph": "M").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MICROSECONDS_PER_SECOND = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInterval:
    """One microbatch on one stage.

    Attributes:
        stage: 0 is the head.
        step_id: of the plan, the same on every stage.
        start_seconds: since the beginning of the run.
        duration_seconds: how long the stage was busy with it.
        label: what the box says, such as "prefill 512" or "decode x8".
        sequence_ids: whose rows it held.
        prefix_tokens: tokens before the chunk (the first one, where there are more).
        num_tokens: new tokens of the microbatch.
    """

    stage: int
    step_id: int
    start_seconds: float
    duration_seconds: float
    label: str
    sequence_ids: tuple[int, ...] = ()
    prefix_tokens: int = 0
    num_tokens: int = 0

    @property
    def end_seconds(self) -> float:
        """When the stage is free again."""
        return self.start_seconds + self.duration_seconds


def chrome_trace(runs: Mapping[str, Iterable[StageInterval]]) -> dict[str, Any]:
    """The trace as a JSON document.

    Args:
        runs: name -> its intervals, in any order; each run gets a process of its own, and all start
            at time 0 so that they can be compared.
    """
    events: list[dict[str, Any]] = []
    for process_id, (name, intervals) in enumerate(runs.items()):
        boxes = sorted(intervals, key=lambda box: (box.stage, box.start_seconds))
        events.append(_metadata("process_name", process_id, 0, {"name": name}))
        for stage in sorted({box.stage for box in boxes}):
            events.append(_metadata("thread_name", process_id, stage, {"name": f"stage {stage}"}))
            events.append(_metadata("thread_sort_index", process_id, stage, {"sort_index": stage}))
        events += [_box(process_id, box) for box in boxes]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_chrome_trace(path: Path, runs: Mapping[str, Iterable[StageInterval]]) -> None:
    """Write the trace to a file.

    Raises:
        ConfigError: the path cannot be written; names it and says why.
    """
    try:
        path.write_text(json.dumps(chrome_trace(runs)) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be written: {error.strerror}") from error


def _metadata(kind: str, process_id: int, thread_id: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process_id, "tid": thread_id, "args": args}


def _box(process_id: int, interval: StageInterval) -> dict[str, Any]:
    return {
        "name": interval.label,
        "cat": "step",
        "ph": "X",
        "ts": interval.start_seconds * MICROSECONDS_PER_SECOND,
        "dur": interval.duration_seconds * MICROSECONDS_PER_SECOND,
        "pid": process_id,
        "tid": interval.stage,
        "args": {
            "step_id": interval.step_id,
            "sequence_ids": list(interval.sequence_ids),
            "prefix_tokens": interval.prefix_tokens,
            "num_tokens": interval.num_tokens,
        },
    }
