from atom_lite.chunking.planner import ChunkRequest, Supply, plan_limits
from atom_lite.chunking.planners.makespan import MAX_PROMPTS, MakespanPlanner
from tests.fakes.deferred import Deferred
from tests.unit.chunking.samples import KIMI, SERVED, scaled

LIMITS = plan_limits(2048)


def planner(*, fitted: bool = True) -> MakespanPlanner:
    made = MakespanPlanner(LIMITS)
    if fitted:
        made.install((SERVED,) * 4)
    return made


def request(
    prefix: int, remaining: int, *, budget: int = 2048, id: int = 1, whole: bool = False
) -> ChunkRequest:
    return ChunkRequest(
        sequence_id=id,
        prefix_tokens=prefix,
        remaining_tokens=remaining,
        budget_tokens=budget,
        must_be_whole=whole,
    )


def serve(
    made: MakespanPlanner, prompt: int, *, prefix: int = 0, budget: int = 2048, id: int = 1
) -> list[int]:
    sizes = []
    while prefix < prompt:
        decision = made.next_chunk(request(prefix, prompt - prefix, budget=budget, id=id))
        assert 1 <= decision.tokens <= min(budget, prompt - prefix)
        sizes.append(decision.tokens)
        prefix += decision.tokens
    return sizes


def test_a_served_prompt_gets_the_planned_chunks() -> None:
    made = planner()
    sizes = serve(made, 8192)
    assert made.last_plan is not None
    assert tuple(sizes) == made.last_plan.sizes
    assert len(sizes) > 4


def test_a_prefix_hit_is_planned_from_where_it_ends() -> None:
    made = planner()
    sizes = serve(made, 8192, prefix=4096)
    assert made.last_plan is not None
    assert made.last_plan.span == (4096, 8192)
    assert sum(sizes) == 4096


def test_a_plan_is_searched_once_per_prompt() -> None:
    made = planner()
    first = made.next_chunk(request(0, 8192)).tokens
    searched = made.last_plan
    made.next_chunk(request(first, 8192 - first))
    assert made.last_plan is searched


def test_prepare_searches_ahead_of_the_first_chunk() -> None:
    made = planner()
    made.prepare(request(0, 8192))
    searched = made.last_plan
    assert searched is not None
    made.next_chunk(request(0, 8192))
    assert made.last_plan is searched
    planner(fitted=False).prepare(request(0, 8192))


def test_steps_with_little_budget_do_not_spoil_the_plan() -> None:
    made = planner()
    sizes = serve(made, 8192, budget=300)
    assert sum(sizes) == 8192
    assert all(size % 64 == 0 for size in sizes[:-1])
    assert sizes[-1] >= LIMITS.floor


def test_a_prompt_that_has_left_its_plan_goes_on_by_the_plans_target() -> None:
    made, kept = planner(), planner()
    first, second, *_ = serve(kept, 8192, id=2)
    short = made.next_chunk(request(0, 8192, budget=first - 64)).tokens
    assert short == first - 64
    assert made.last_plan is not None
    assert made.last_plan.size_at(short) is None
    # One that stopped at the planned cut would leave a sliver there.
    after = made.next_chunk(request(short, 8192 - short)).tokens
    assert 0.8 * second <= after <= 1.2 * second


def test_a_budget_under_one_tile_is_used_as_it_is() -> None:
    assert planner().next_chunk(request(0, 8192, budget=10)).tokens == 10


def test_other_prefills_make_chunks_larger_without_a_gate() -> None:
    alone, among = planner(), planner()
    alone.begin_step(Supply(1))
    among.begin_step(Supply(4))
    assert among.next_chunk(request(0, 8192)).tokens > alone.next_chunk(request(0, 8192)).tokens
    assert among.next_chunk(request(0, 8192)).reason == "model"
    among.begin_step(Supply(1))
    assert among.next_chunk(request(0, 8192)) == alone.next_chunk(request(0, 8192))


def test_a_load_that_rises_and_falls_costs_few_searches() -> None:
    searches = Deferred()
    made = MakespanPlanner(LIMITS, background=searches)
    made.install((SERVED,) * 4)
    for num_prefills in (5, 6, 7, 8, 7, 6, 5):
        made.begin_step(Supply(num_prefills))
        made.next_chunk(request(0, 8192))
    assert searches.num_waiting == 1


def test_a_steps_second_prompt_gets_its_whole_chunk_or_nothing() -> None:
    made = planner()
    made.begin_step(Supply(2))
    first = made.next_chunk(request(0, 8192, id=1)).tokens
    assert made.next_chunk(request(0, 8192, budget=2048 - first, id=2)).tokens == 0
    assert made.next_chunk(request(0, 130, budget=2048 - first, id=3)).tokens == 0  # no crumbs
    made.begin_step(Supply(2))
    assert made.next_chunk(request(8000, 192, id=1)).tokens == 192
    assert made.next_chunk(request(0, 130, budget=1856, id=4)).tokens == 130


def test_the_first_prompt_of_a_step_may_be_asked_again() -> None:
    made = planner()
    made.begin_step(Supply(2))
    first = made.next_chunk(request(0, 8192, id=1))
    assert made.next_chunk(request(0, 8192, id=1)) == first
    made.forget(1)
    assert made.next_chunk(request(0, 8192, id=2)).tokens > 0


def test_beside_streams_chunks_are_smaller() -> None:
    alone, beside = planner(), planner()
    beside.begin_step(Supply(1, num_streams=3))
    assert max(serve(beside, 8192)) < max(serve(alone, 8192))


def test_a_new_model_is_planned_with_at_once() -> None:
    made = planner()
    made.next_chunk(request(0, 8192))
    old = made.last_plan
    made.install((KIMI,) * 4)
    made.next_chunk(request(512, 8192 - 512))
    assert made.last_plan is not old


def test_a_preempted_prompt_that_comes_back_longer_is_planned_anew() -> None:
    made = planner()
    made.next_chunk(request(0, 4096))
    made.next_chunk(request(0, 5000))
    assert made.last_plan is not None
    assert made.last_plan.span == (0, 5000)


def test_without_a_model_small_and_large_chunks_alternate_within_a_prompt() -> None:
    made = planner(fitted=False)
    assert serve(made, 4096, id=1) == [192, 704] * 4 + [192, 320]
    assert serve(made, 1024, id=2) == [128, 256, 128, 256, 128, 128]
    assert made.next_chunk(request(0, 4096, id=3)).reason == "sweep"
    assert serve(made, 200, id=4) == [200]


def test_exploration_varies_sizes_under_a_small_budget_too() -> None:
    made = MakespanPlanner(plan_limits(512))
    sizes = serve(made, 7400, budget=512)
    assert sizes[:4] == [320, 512, 320, 512] or sizes[:4] == [128, 512, 128, 512]
    assert max(sizes) >= 3 * min(sizes)


def test_a_chunk_that_found_no_place_is_explored_again_with_the_same_size() -> None:
    made = planner(fitted=False)
    assert made.next_chunk(request(0, 4096)) == made.next_chunk(request(0, 4096))


def test_exploration_leaves_no_tiny_tail() -> None:
    made = planner(fitted=False)
    for prompt in range(256, 3000, 97):
        assert min(serve(made, prompt, id=prompt)) >= LIMITS.floor


def test_uneven_stages_are_planned_by_the_slowest() -> None:
    made = MakespanPlanner(LIMITS)
    made.install((SERVED, SERVED, scaled(SERVED, 1.3)))
    sizes = serve(made, 8192)
    assert made.last_plan is not None
    assert tuple(sizes) == made.last_plan.sizes


def test_a_prefill_that_must_be_whole_is_not_cut() -> None:
    assert planner().next_chunk(request(0, 1500, whole=True)) == (1500, "whole_prompt")


def test_forgotten_prompts_do_not_pile_up() -> None:
    made = planner(fitted=False)
    for id in range(MAX_PROMPTS + 5):
        made.next_chunk(request(0, 1000, id=id))
    assert len(made._prompts) == MAX_PROMPTS
    made.forget(MAX_PROMPTS)
    made.forget(-1)
    assert len(made._prompts) == MAX_PROMPTS - 1


def test_the_same_prefill_terms_again_keep_the_plans() -> None:
    made = planner()
    made.next_chunk(request(0, 8192))
    searched = made.last_plan
    made.install((SERVED.with_decodes(0.001, 1e-7),) * 4)  # plans do not depend on decode terms
    made.next_chunk(request(512, 8192 - 512))
    assert made.last_plan is searched


def deferred_planner() -> tuple[MakespanPlanner, Deferred]:
    background = Deferred()
    made = MakespanPlanner(LIMITS, background=background)
    made.install((SERVED,) * 4)
    return made, background


def test_a_prompt_whose_plan_is_searched_waits_and_then_gets_it() -> None:
    made, background = deferred_planner()
    made.prepare(request(0, 8192))
    assert made.next_chunk(request(0, 8192)).tokens == 0
    assert background.num_waiting == 1
    background.work()
    assert tuple(serve(made, 8192)) == tuple(serve(planner(), 8192))


def test_a_prompt_of_one_chunk_waits_for_no_search() -> None:
    made, background = deferred_planner()
    assert made.next_chunk(request(0, 200)) == (200, "model")
    assert background.num_waiting == 0


def test_of_many_that_arrive_together_one_is_planned_ahead() -> None:
    made, background = deferred_planner()
    for id in range(100):
        made.prepare(request(0, 8192, id=id))
    assert background.num_waiting == 1


def test_when_the_load_changes_the_old_plan_serves_until_the_new_one_is_there() -> None:
    made, background = deferred_planner()
    made.next_chunk(request(0, 8192))
    background.work()
    alone = made.next_chunk(request(0, 8192)).tokens
    made.begin_step(Supply(4))
    assert made.next_chunk(request(0, 8192)).tokens == alone
    background.work()
    assert made.next_chunk(request(0, 8192)).tokens > alone


def test_a_prefix_hit_is_not_served_by_the_plan_of_the_whole_prompt() -> None:
    made, background = deferred_planner()
    made.prepare(request(0, 8192))
    background.work()
    assert made.next_chunk(request(4096, 4096)).tokens == 0
    background.work()
    assert made.last_plan is not None
    assert made.last_plan.span == (4096, 8192)
    assert made.next_chunk(request(4096, 4096)).tokens == made.last_plan.sizes[0]


def test_a_plan_for_a_prompt_that_has_gone_is_dropped() -> None:
    made, background = deferred_planner()
    made.next_chunk(request(0, 8192))
    made.forget(1)
    background.work()
    assert made.next_chunk(request(0, 8192)).tokens == 0
