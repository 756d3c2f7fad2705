"""The links between real processes, over gloo and over shared memory: order, bits, every end.

Times are bounded by what the protocol promises (LinkTiming), with room for a busy machine.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from atom_lite.parallel.link import LinkTiming, PipelineError
from atom_lite.parallel.wire import INLINE_BYTES
from tests.pipeline.processes import Nursery, Pipeline
from tests.pipeline.stage_process import MAX_SENDS_IN_FLIGHT, Outcome, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

# A hang is noticed within hang_seconds and one beat; a process needs a moment to end.
TIMING = LinkTiming(heartbeat_seconds=0.25, hang_seconds=3)
NOTICED_SECONDS = 10
EXIT_SECONDS = 15
GONE_OR_TOLD = {0, 1, 3}


@pytest.fixture(params=[2, 3])
def num_stages(request: pytest.FixtureRequest) -> int:
    return int(request.param)


GLOO = pytest.param(False, id="gloo")
SHARED_MEMORY = pytest.param(True, id="shared memory")
GLOO_IN_FULL = pytest.param(False, id="gloo", marks=pytest.mark.full)
SHARED_MEMORY_IN_FULL = pytest.param(True, id="shared memory", marks=pytest.mark.full)


@pytest.fixture(scope="module", params=[GLOO, SHARED_MEMORY])
def is_one_host(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def nursery(is_one_host: bool) -> Iterator[Nursery]:
    nursery = Nursery(is_one_host=is_one_host)
    yield nursery
    nursery.close()


@contextmanager
def running(pipeline: Pipeline) -> Iterator[Pipeline]:
    try:
        yield pipeline
    finally:
        pipeline.kill_stages()


def random_step(draw: random.Random, num_stages: int) -> Step:
    delays = {stage: draw.choice([0, 0, 0.004]) for stage in range(1, num_stages)}
    return Step(
        shape=(draw.choice([1, 17, 256, 600]), draw.choice([8, 576])),
        dtype=draw.choice(["float32", "bfloat16", "float16"]),
        seed=draw.randrange(1 << 30),
        delays=delays,
        result_bytes=draw.choice([0, 100, INLINE_BYTES, 200_000]),
    )


def test_steps_run_in_order_and_bit_for_bit_under_random_sizes_and_delays(
    nursery: Nursery, num_stages: int
) -> None:
    draw = random.Random(num_stages)
    with running(Pipeline(nursery, num_stages)) as pipeline:
        steps = [random_step(draw, num_stages) for _ in range(60)]
        results: list[tuple[int, Outcome]] = []
        for step_id, step in enumerate(steps):
            if step_id - len(results) > num_stages:
                results += pipeline.wait_for_results(1)
            pipeline.start(step_id, step, padding=draw.choice([0, 0, INLINE_BYTES, 300_000]))
        results += pipeline.wait_for_results(len(steps) - len(results))
        assert results == [(i, pipeline.expected(step)) for i, step in enumerate(steps)]
        assert set(pipeline.close().values()) == {0}


def test_sends_do_not_wait_for_the_receiver_to_finish_its_step(nursery: Nursery) -> None:
    with running(Pipeline(nursery, 2)) as pipeline:
        steps = [Step(shape=(512, 576), seed=step_id) for step_id in range(MAX_SENDS_IN_FLIGHT + 3)]
        steps[0].delays = {1: 2.0}
        for step_id, step in enumerate(steps):
            pipeline.start(step_id, step)  # more than may be unsent: so they have arrived
        assert pipeline.link.poll_results() == []  # while the stage is still in step 0
        results = pipeline.wait_for_results(len(steps))
        assert results == [(i, pipeline.expected(step)) for i, step in enumerate(steps)]
        assert set(pipeline.close().values()) == {0}


@pytest.mark.parametrize("is_one_host", [GLOO], indirect=True)  # shared memory has no timeout
def test_an_idle_pipeline_outlives_the_group_timeout_and_then_serves(nursery: Nursery) -> None:
    with running(Pipeline(nursery, 3, group_seconds=5)) as pipeline:
        assert not pipeline.woken.wait(15)
        step = Step(shape=(64, 576))
        pipeline.start(0, step)
        assert pipeline.wait_for_results(1) == [(0, pipeline.expected(step))]
        assert set(pipeline.close().values()) == {0}


def wait_for_the_error(pipeline: Pipeline) -> str:
    start = time.monotonic()
    with pytest.raises(PipelineError) as caught:
        pipeline.wait_for_results(1_000_000, NOTICED_SECONDS)
    assert time.monotonic() - start < NOTICED_SECONDS
    return str(caught.value)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_killed_stage_ends_the_run_in_seconds(nursery: Nursery, rank: int) -> None:
    with running(Pipeline(nursery, 3, timing=TIMING)) as pipeline:
        pipeline.start(0, Step(shape=(4, 8)))
        pipeline.wait_for_results(1)
        pipeline.stages[rank].kill()
        message = wait_for_the_error(pipeline)
        assert f"stage {rank} is gone" in message
        codes = pipeline.close()
        assert codes.pop(rank) == -signal.SIGKILL
        assert set(codes.values()) <= GONE_OR_TOLD


def test_a_stage_that_dies_mid_step_ends_the_run_in_seconds(nursery: Nursery) -> None:
    with running(Pipeline(nursery, 3, timing=TIMING)) as pipeline:
        pipeline.start(0, Step(shape=(512, 576), delays={1: 60}))
        pipeline.stages[1].kill()
        assert "stage 1 is gone" in wait_for_the_error(pipeline)
        assert pipeline.close()[2] in GONE_OR_TOLD


@pytest.mark.parametrize("rank", [1, 2])
def test_a_raising_stage_says_why(nursery: Nursery, rank: int) -> None:
    with running(Pipeline(nursery, 3, timing=TIMING)) as pipeline:
        pipeline.start(0, Step(shape=(4, 8)))
        pipeline.wait_for_results(1)
        pipeline.start(1, Step(shape=(4, 8), raises_in=rank))
        assert f"stage {rank} failed: ValueError: planted" in wait_for_the_error(pipeline)
        codes = pipeline.close()
        assert codes.pop(rank) == 1
        assert set(codes.values()) <= GONE_OR_TOLD


@pytest.mark.parametrize("is_one_host", [GLOO_IN_FULL, SHARED_MEMORY], indirect=True)
@pytest.mark.parametrize("rank", [1, 2])
def test_a_hung_stage_ends_the_run_in_seconds(nursery: Nursery, rank: int) -> None:
    with running(Pipeline(nursery, 3, timing=TIMING)) as pipeline:
        pipeline.start(0, Step(shape=(512, 576), hangs_in=rank))
        assert f"stage {rank} is gone: it has stopped answering" in wait_for_the_error(pipeline)
        pipeline.link.close()
        survivor = pipeline.stages[3 - rank]
        # with its neighbour stopped, a survivor may wait in gloo; its main thread still ends it
        assert survivor.wait(EXIT_SECONDS) in GONE_OR_TOLD
        pipeline.stages[rank].send_signal(signal.SIGCONT)  # and if it comes back, it goes
        assert pipeline.stages[rank].wait(EXIT_SECONDS) in GONE_OR_TOLD


def start_head(
    hang_seconds: float, is_one_host: bool
) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    connection = "shared-memory" if is_one_host else "gloo"
    head = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.head_process", str(hang_seconds), connection],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert head.stdout is not None
    return head, [psutil.Process(int(pid)) for pid in head.stdout.readline().split()]


def run_a_step(head: subprocess.Popen[str]) -> None:
    assert head.stdin is not None
    assert head.stdout is not None
    head.stdin.write("\n")
    head.stdin.flush()
    assert head.stdout.readline() == "ok\n"


@contextmanager
def running_head(
    hang_seconds: float, is_one_host: bool
) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    head, stages = start_head(hang_seconds, is_one_host)
    try:
        assert len(stages) == 2
        yield head, stages
    finally:
        head.kill()
        for stage in stages:
            if stage.is_running():
                stage.kill()
        head.communicate()


def assert_ends(process: psutil.Process) -> None:
    descriptor = os.pidfd_open(process.pid)  # readable once it ends, whoever may reap it
    try:
        assert select.select([descriptor], [], [], NOTICED_SECONDS + EXIT_SECONDS)[0]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("is_one_host", [GLOO_IN_FULL, SHARED_MEMORY], indirect=True)
def test_stages_end_when_the_head_hangs(is_one_host: bool) -> None:
    with running_head(TIMING.hang_seconds, is_one_host) as (head, stages):
        run_a_step(head)
        head.send_signal(signal.SIGSTOP)
        for stage in stages:
            assert_ends(stage)


@pytest.mark.parametrize("is_one_host", [GLOO, SHARED_MEMORY_IN_FULL], indirect=True)
def test_a_run_that_is_stopped_as_a_whole_goes_on_and_stages_end_when_the_head_is_killed(
    is_one_host: bool,
) -> None:
    hang_seconds = 1.0
    with running_head(hang_seconds, is_one_host) as (head, stages):
        run_a_step(head)
        everybody = [psutil.Process(head.pid), *stages]
        for process in everybody:
            process.suspend()
        with pytest.raises(psutil.TimeoutExpired):
            everybody[1].wait(2 * hang_seconds)  # stopped for longer than a hang
        for process in everybody:
            process.resume()
        run_a_step(head)
        head.kill()
        for stage in stages:
            assert_ends(stage)
