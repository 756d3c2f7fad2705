"""Replayed plans are the measured times under the exact recursion, and nothing else."""

import itertools

import pytest

from atom_lite.chunking.flow_shop import equal_stages_seconds
from atom_lite.simulation.replay import (
    HopCost,
    Measurements,
    Probe,
    prefixes,
    probes_of,
    replay,
)

SPLIT = (4, 4, 3)
SIZES = (64, 64, 32)


def measured(**fields: object) -> Measurements:
    measurements = Measurements(**fields)  # type: ignore[arg-type]
    for probe in probes_of(SPLIT, SIZES):
        measurements.add(probe, probe.num_layers * probe.new_tokens / 64)
    return measurements


def test_stages_of_equal_depth_share_their_probes() -> None:
    assert probes_of(SPLIT, SIZES) == [
        Probe(4, 0, 64),
        Probe(4, 64, 64),
        Probe(4, 128, 32),
        Probe(3, 0, 64),
        Probe(3, 64, 64),
        Probe(3, 128, 32),
    ]
    assert prefixes(SIZES) == [0, 64, 128]


def test_equal_stages_take_the_closed_forms_time() -> None:
    taken = replay(measured(), (4, 4, 4), SIZES)
    assert taken.makespan_seconds == pytest.approx(equal_stages_seconds([4, 4, 2], 3))
    assert taken.busy_seconds == (10, 10, 10)
    assert taken.bubble_seconds == pytest.approx((8, 8, 8))


def test_a_hop_delays_a_chunk_but_keeps_no_stage_busy() -> None:
    plain = replay(measured(), SPLIT, SIZES)
    delayed = replay(measured(hop=HopCost(0.5, 0.0)), SPLIT, SIZES)
    assert delayed.makespan_seconds == pytest.approx(plain.makespan_seconds + 2 * 0.5)
    assert delayed.busy_seconds == plain.busy_seconds


def test_a_link_carries_one_chunk_at_a_time() -> None:
    slow_link = HopCost(0.0, 10 / 64)  # 10 s for a chunk of 64 tokens, longer than any stage
    taken = replay(measured(hop=slow_link), (4, 4), SIZES)
    assert taken.makespan_seconds == pytest.approx(4 + 10 + 10 + 5 + 2)


def test_the_head_counts_once_on_the_last_stage() -> None:
    plain = replay(measured(), SPLIT, SIZES)
    with_draw = replay(measured(draw_seconds=0.25), SPLIT, SIZES)
    assert with_draw.makespan_seconds == pytest.approx(plain.makespan_seconds + 0.25)
    assert with_draw.busy_seconds[:-1] == plain.busy_seconds[:-1]
    assert with_draw.busy_seconds[-1] == pytest.approx(plain.busy_seconds[-1] + 0.25)


def test_the_median_of_several_times_counts() -> None:
    measurements = measured()
    for probe in probes_of(SPLIT, SIZES):
        measurements.add(probe, 1000.0)
        measurements.add(probe, 0.0)
    expected = replay(measured(), SPLIT, SIZES)
    assert replay(measurements, SPLIT, SIZES) == expected


def test_what_was_not_measured_is_not_made_up() -> None:
    with pytest.raises(KeyError):
        replay(measured(), SPLIT, (64, 32, 64))


def test_the_timeline_has_each_chunk_on_each_stage_without_overlap() -> None:
    taken = replay(measured(), SPLIT, SIZES)
    assert len(taken.intervals) == len(SPLIT) * len(SIZES)
    for stage in range(len(SPLIT)):
        row = [box for box in taken.intervals if box.stage == stage]
        assert [box.num_tokens for box in row] == list(SIZES)
        assert [box.prefix_tokens for box in row] == [0, 64, 128]
        for before, after in itertools.pairwise(row):
            assert before.end_seconds <= after.start_seconds + 1e-9
    assert max(box.end_seconds for box in taken.intervals) == taken.makespan_seconds
