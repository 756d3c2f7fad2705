from __future__ import annotations

import pytest

from atom_lite.errors import EngineError
from atom_lite.messages import StepResult
from atom_lite.scheduler.in_flight import Flight, InFlight
from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.scheduler_inputs import answer, make_limits, make_submission, shape


def test_flights_land_in_the_order_of_their_launch() -> None:
    in_flight = InFlight(depth=2)
    in_flight.launch(Flight(4, []))
    in_flight.launch(Flight(5, []))
    assert not in_flight.has_room(may_run_ahead=True)
    with pytest.raises(EngineError, match="step 5 arrived while the oldest step in flight is 4"):
        in_flight.land(StepResult(step_id=5, tokens=[]))
    assert in_flight.land(StepResult(step_id=4, tokens=[])).step_id == 4
    assert in_flight.has_room(may_run_ahead=False) and len(in_flight) == 1


@pytest.mark.parametrize(("depth", "shares"), [(1, [1, 5, 8]), (2, [1, 3, 4]), (4, [1, 2, 2])])
def test_decodes_are_shared_evenly_over_the_depth(depth: int, shares: list[int]) -> None:
    in_flight = InFlight(depth)
    assert [in_flight.decode_share(n) for n in (1, 5, 8)] == shares


def test_a_long_prompt_fills_all_stages_with_its_chunks() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=3))
    scheduler.submit(make_submission(1, 100), 0.0)
    plans = [scheduler.schedule(0.0) for _ in range(4)]
    assert [shape(plan) for plan in plans[:3]] == [[(1, 32)]] * 3
    assert plans[3] is None, "three in flight are all there may be"


def test_decodes_settle_into_one_group_per_stage() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2))
    for sequence_id in range(6):
        scheduler.submit(make_submission(sequence_id, 3, 50), 0.0)
    first = scheduler.schedule(0.0)
    assert first is not None
    scheduler.commit(answer(first), 0.0)
    plans = [scheduler.schedule(0.0), scheduler.schedule(0.0)]
    groups = []
    for _ in range(4):
        oldest = plans.pop(0)
        assert oldest is not None
        groups.append([sequence_id for sequence_id, _ in shape(oldest)])
        scheduler.commit(answer(oldest), 0.0)
        plans.append(scheduler.schedule(0.0))
    assert groups == [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5]]


def test_a_large_prefill_does_not_slip_between_decodes_in_flight() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2))
    scheduler.submit(make_submission(0, 3, 50), 0.0)
    first = scheduler.schedule(0.0)
    assert first is not None
    scheduler.submit(make_submission(1, 100), 0.0)
    assert shape(scheduler.schedule(0.0)) == [(1, 16)], "the decode budget, though none is in it"


def test_atom_35_an_acknowledged_middle_chunk_retires_with_the_last_stages_result() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2), needs_acknowledgement=lambda: True)
    scheduler.submit(make_submission(1, 200), 0.0)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert first is not None and second is not None
    assert first.acknowledge and second.acknowledge, "the flag travels with the batch"
    scheduler.hand_on(second.step_id)
    assert scheduler.schedule(0.0) is None, "stage 0 is done with both, the last stage is not"
    scheduler.commit(answer(first), 0.0)
    assert shape(scheduler.schedule(0.0)) == [(1, 32)]


def test_atom_35_once_off_a_middle_chunk_retires_when_stage_0_hands_it_on() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2), needs_acknowledgement=lambda: False)
    scheduler.submit(make_submission(1, 200), 0.0)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert first is not None and second is not None
    assert not first.acknowledge and not second.acknowledge
    assert scheduler.schedule(0.0) is None, "stage 0 has handed on neither"
    scheduler.hand_on(first.step_id)
    assert shape(scheduler.schedule(0.0)) == [(1, 32)]
    scheduler.hand_on(second.step_id)
    assert scheduler.schedule(0.0) is None, "three are away from home, as many as may be"
    scheduler.commit(answer(first), 0.0)
    assert shape(scheduler.schedule(0.0)) == [(1, 32)]


def test_atom_35_a_switch_changes_no_step_that_is_under_way() -> None:
    flag = [True]
    scheduler = Scheduler(make_limits(pipeline_depth=2), needs_acknowledgement=lambda: flag[0])
    scheduler.submit(make_submission(1, 250), 0.0)
    first = scheduler.schedule(0.0)
    flag[0] = False
    second = scheduler.schedule(0.0)
    assert first is not None and second is not None
    assert (first.acknowledge, second.acknowledge) == (True, False)
    scheduler.hand_on(first.step_id)
    assert scheduler.schedule(0.0) is None, "the first was planned to be acknowledged"
    scheduler.hand_on(second.step_id)
    third = scheduler.schedule(0.0)
    assert third is not None, "the second was not"
    flag[0] = True
    for plan in (first, second, third):
        scheduler.hand_on(third.step_id)
        scheduler.commit(answer(plan), 0.0)


def test_a_step_that_draws_a_token_is_always_acknowledged() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2), needs_acknowledgement=lambda: False)
    scheduler.submit(make_submission(1, 40), 0.0)
    scheduler.submit(make_submission(2, 200), 0.0)
    plans = [scheduler.schedule(0.0), scheduler.schedule(0.0)]
    assert [plan.acknowledge for plan in plans if plan is not None] == [False, True]


def test_nothing_runs_ahead_while_a_sequence_decodes() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2), needs_acknowledgement=lambda: False)
    scheduler.submit(make_submission(1, 3, 50), 0.0)
    first = scheduler.schedule(0.0)
    assert first is not None
    scheduler.submit(make_submission(2, 200), 0.0)
    chunk = scheduler.schedule(0.0)
    assert chunk is not None and not chunk.acknowledge
    scheduler.hand_on(chunk.step_id)
    assert scheduler.schedule(0.0) is None, "the decode of 1 comes next, and soon"


def test_one_stage_alone_never_runs_ahead() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=1))
    scheduler.submit(make_submission(1, 200), 0.0)
    assert scheduler.schedule(0.0) is not None
    scheduler.hand_on(-1)  # what the executor of one stage says
    assert scheduler.schedule(0.0) is None
