"""The trace holds every interval, named, in microseconds, one thread per stage."""

import json
from pathlib import Path

import pytest

from atom_lite.errors import ConfigError
from atom_lite.simulation.chrome_trace import StageInterval, chrome_trace, write_chrome_trace

FIRST = StageInterval(
    stage=0,
    step_id=7,
    start_seconds=0.5,
    duration_seconds=0.25,
    label="prefill 512",
    sequence_ids=(3,),
    prefix_tokens=1024,
    num_tokens=512,
)
SECOND = StageInterval(
    stage=1, step_id=7, start_seconds=0.75, duration_seconds=0.5, label="prefill 512"
)


def test_an_interval_becomes_a_complete_event_in_microseconds() -> None:
    (box,) = [e for e in chrome_trace({"makespan": [FIRST]})["traceEvents"] if e["ph"] == "X"]
    assert (box["ts"], box["dur"], box["name"], box["tid"]) == (500e3, 250e3, "prefill 512", 0)
    assert box["args"] == {
        "step_id": 7,
        "sequence_ids": [3],
        "prefix_tokens": 1024,
        "num_tokens": 512,
    }


def test_each_run_is_a_named_process_and_each_stage_a_named_thread() -> None:
    events = chrome_trace({"a": [SECOND, FIRST], "b": [FIRST]})["traceEvents"]
    names = {
        (e["name"], e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["name"] in ("process_name", "thread_name")
    }
    assert names == {
        ("process_name", 0, 0): "a",
        ("thread_name", 0, 0): "stage 0",
        ("thread_name", 0, 1): "stage 1",
        ("process_name", 1, 0): "b",
        ("thread_name", 1, 0): "stage 0",
    }


def test_a_written_trace_can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_chrome_trace(path, {"run": [FIRST, SECOND]})
    assert json.loads(path.read_text()) == chrome_trace({"run": [FIRST, SECOND]})


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        write_chrome_trace(tmp_path / "nowhere" / "trace.json", {})
