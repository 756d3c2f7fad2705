"""The flags of the chunking benchmark, and what it says it will take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.chunking_estimate import estimated_minutes
from benchmarks.chunking_http import server_arms
from benchmarks.chunking_options import parse_options
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from pathlib import Path

SPLITS = {2: (15, 15), 4: (8, 8, 7, 7), 8: (4, 4, 4, 4, 4, 4, 3, 3)}


def model_flags(tmp_path: Path) -> list[str]:
    return ["--model", str(tmp_path / "model.gguf")]


def test_lengths_arms_and_stages_are_lists(tmp_path: Path) -> None:
    flags = ["--lengths", "64,128", "--arms", "fixed-32,makespan", "--stages", "2"]
    options = parse_options([*model_flags(tmp_path), *flags, "--", "--threads", "1"])
    assert options.lengths == (64, 128)
    assert options.arms == ("fixed-32", "makespan")
    assert options.stages == (2,)
    assert options.server_args == ("--threads", "1")


@pytest.mark.parametrize("arms", ["fixed-256", "makespan", "atom,sglang"])
def test_makespan_and_a_fixed_arm_are_needed(arms: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="--arms"):
        parse_options([*model_flags(tmp_path), "--arms", arms])


def test_quick_is_about_three_minutes_and_the_whole_an_hour_or_two(tmp_path: Path) -> None:
    options = parse_options([*model_flags(tmp_path), "--quick"])
    quick = estimated_minutes(options, {stages: SPLITS[stages] for stages in options.stages})
    whole = estimated_minutes(parse_options(model_flags(tmp_path)), SPLITS)
    assert quick.keys() == whole.keys() == {"pairs", "replay", "http", "load"}
    assert 1 < sum(quick.values()) < 4
    assert 30 < sum(whole.values()) < 150
    assert all(quick[part] < whole[part] for part in quick)


def test_an_estimate_is_no_more_than_the_budget(tmp_path: Path) -> None:
    flags = ["--mode", "pairs", "--budget-minutes", "5"]
    options = parse_options([*model_flags(tmp_path), *flags])
    assert estimated_minutes(options, SPLITS) == {"pairs": 5.0}


def test_the_feature_is_served_with_no_other_flag() -> None:
    names = {arm.name: arm.flags for arm in server_arms(256, ())}
    assert names["PP2 makespan"] == ("--enable-dynamic-chunking",)
    assert names["PP1"] == ()
    assert "256" in names["PP2 fixed-256"]
