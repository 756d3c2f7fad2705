"""The command: tables, a trace, and mistakes that are told in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from atom_lite.chunking.profile import Fingerprint, Profile, save_profile
from atom_lite.simulation.command import main
from atom_lite.simulation.published import kimi
from tests.unit.chunking.samples import scaled

if TYPE_CHECKING:
    from pathlib import Path


def test_a_table_and_a_trace_come_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    flags = ["--prompt", "32K", "--policy", "makespan", "fixed:4K", "atom:32K:0.75"]
    assert main([*flags, "--trace", str(trace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 prompt of 32K tokens, 1 at once, 4 stages"
    table = {line.split()[0]: line.split()[1:] for line in lines[2:] if line}
    assert float(table["fixed:4096"][0]) == pytest.approx(1261.3, abs=0.1)
    assert float(table["atom:32768:0.75"][0]) == pytest.approx(2290.6, abs=0.1)
    assert table["makespan"][1] == "1.000"
    events = json.loads(trace.read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["32K makespan", "32K fixed:4096", "32K atom:32768:0.75"]
    assert sum(e["ph"] == "X" and e["pid"] == 1 for e in events) == 8 * 4


def test_streams_and_hindsight_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--prompt 500-2000 --requests 6 --concurrency 3 --output-tokens 5 --stages 2"
    assert main([*flags.split(), "--policy", "fixed:best", "--decode-ms", "0.5,0.001"]) == 0
    title, head, row, *_ = capsys.readouterr().out.splitlines()
    assert title == "6 prompts of 500-2000 tokens, 3 at once, 2 stages"
    assert "ITL p99" in head and "TTFT p99" in head
    assert row.startswith("fixed:best = ")


def test_what_was_learned_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--prompt 8K --requests 6 --stages 2 --coefficients 2.5e-5,0.015,3,0.002 --learn"
    assert main([*flags.split(), "--policy", "makespan"]) == 0
    assert "model refitted" in capsys.readouterr().out


def test_a_saved_profile_is_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    models = (kimi(), scaled(kimi(), 2.0))
    fingerprint = Fingerprint(
        model="m", dtype="float32", device="cpu", num_threads=1, layers_per_stage=(1, 2)
    )
    save_profile(path, Profile(fingerprint=fingerprint, models=models, qualities=(None, None)))
    assert main(["--profile", str(path), "--prompt", "8K", "--policy", "fixed:8K"]) == 0
    assert "2 stages" in (out := capsys.readouterr().out)
    seconds = kimi().chunk_seconds(0, 8192)
    assert f"{3000.0 * seconds:.1f}" in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--policy fastest", "no policy 'fastest', only makespan, atom"),
        ("--policy atom:32K:2", "smooth factor is '2', must be a number from 0 to 1"),
        ("--policy fixed:4K:1", "takes fewer settings"),
        ("--policy fixed:32", "budget is 32, must be at least 64"),
        ("--prompt many", "'many' is no number of tokens"),
        ("--prompt 0", "'0' is no number of tokens"),
        ("--prompt 9K-3K", "from 9216 to 3072"),
        ("--stages 0", "0 stages, must have at least 1"),
        ("--stages 3 --stage-factors 1,2", "for 2 stages but --stages is 3"),
        ("--coefficients 1,2,3", "must be 4 numbers"),
        ("--coefficients 1,2,3,x", "must be 4 numbers"),
        ("--coefficients 1,2,3,-4", "at least 0"),
        ("--noise -1", "noise is -1.0"),
        ("--concurrency 0", "--concurrency is 0, must be at least 1"),
        ("--rate 0", "rate is 0.0"),
        ("--depth 0", "must be at least 1"),
        ("--profile nowhere.json", "no such file"),
        ("--profile p.json --stage-factors 1,1", "contradicts --profile"),
        ("--trace nowhere/trace.json --prompt 1K", "nowhere/trace.json cannot be written"),
        ("--frobnicate", "unrecognized arguments"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    flags: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags.split()) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_the_published_figures_are_shown_with_their_misfit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--published"]) == 0
    out = capsys.readouterr().out
    assert "misfit" in out and "root mean square" in out
