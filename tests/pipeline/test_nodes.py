"""Several nodes, as processes on loopback: the head here, the other node `atom_lite.serve`."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from atom_lite.config import Config, ParallelConfig
from atom_lite.engine.in_process import Engine
from atom_lite.errors import ConfigError
from atom_lite.messages import SamplingParams, SequenceFinished
from atom_lite.parallel.link import PipelineError
from tests.live_servers import wait_until
from tests.pipeline.tiny_run import outputs, tiny_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXIT_SECONDS = 30


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return tiny_config(tmp_path_factory.mktemp("tiny"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def over_two_nodes(config: Config, stages: int, **fields: float) -> Config:
    parallel = ParallelConfig(
        pipeline_parallel_size=stages,
        nnodes=2,
        master_addr="127.0.0.1",
        master_port=free_port(),
        **fields,  # type: ignore[arg-type]
    )
    return dataclasses.replace(config, parallel=parallel)


class Node:
    """Node 1 of a run, by its command line."""

    def __init__(self, config: Config, log: Path, *flags: str) -> None:
        parallel = config.parallel
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "atom_lite.serve", "--node-rank", "1"),
                    *("--model", str(config.model.model), "--dtype", config.model.dtype),
                    *("--threads", "1", "--block-size", str(config.cache.block_size)),
                    *("--max-num-seqs", str(config.scheduler.max_num_seqs)),
                    *("--nnodes", "2", "--master-port", str(parallel.master_port)),
                    *("--master-addr", str(parallel.master_addr)),
                    *("--pipeline-parallel-size", str(parallel.pipeline_parallel_size)),
                    *("--startup-timeout-seconds", str(parallel.startup_timeout_seconds)),
                    *flags,
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def stages(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def wait(self) -> int:
        return self.process.wait(EXIT_SECONDS)

    def kill(self) -> None:
        """As if the host were gone."""
        if self.process.poll() is None:
            for process in (*self.stages(), psutil.Process(self.process.pid)):
                process.kill()
        self.process.wait()


@contextlib.contextmanager
def node_1(config: Config, path: Path, *flags: str) -> Iterator[Node]:
    node = Node(config, path / "node1.log", *flags)
    try:
        yield node
    finally:
        node.kill()


def test_two_nodes_give_the_tokens_of_one_stage_and_end_together(
    tiny: Config, tmp_path: Path
) -> None:
    config = over_two_nodes(tiny, 2)
    with node_1(config, tmp_path) as node:
        assert outputs(config) == outputs(tiny)
        assert node.wait() == 0
    log = node.log.read_text()
    assert f"waiting for the head at 127.0.0.1:{config.parallel.master_port} to run stage 1" in log


def test_a_node_with_other_flags_is_refused_at_both_ends(tiny: Config, tmp_path: Path) -> None:
    config = over_two_nodes(tiny, 2)
    told = "--dtype is bfloat16 instead of the head's float32"
    with node_1(config, tmp_path, "--dtype", "bfloat16") as node:
        with pytest.raises(ConfigError, match=f"stage 1 was started with other settings: {told}"):
            Engine(config)
        assert node.wait() == 2
    assert told in node.log.read_text()


def test_a_node_that_dies_ends_every_sequence_with_an_error(tiny: Config, tmp_path: Path) -> None:
    config = over_two_nodes(tiny, 2)
    with node_1(config, tmp_path) as node:
        engine = Engine(config)
        sampling = SamplingParams(max_tokens=90, ignore_eos=True)
        streams = [engine.events(engine.submit([5] * 10, sampling)) for _ in "abc"]
        next(streams[0])
        started = time.monotonic()
        node.kill()
        for stream in streams:
            *_, last = stream
            assert isinstance(last, SequenceFinished)
            assert last.reason == "error"
            assert "stage 1" in (last.error or "")
        engine.close()
        assert time.monotonic() - started < EXIT_SECONDS


def test_a_node_that_never_comes_is_named(tiny: Config) -> None:
    started = time.monotonic()
    with pytest.raises(PipelineError, match=r"stage 1 did not come up within 0\.5 s"):
        Engine(over_two_nodes(tiny, 2, startup_timeout_seconds=0.5))
    assert time.monotonic() - started < EXIT_SECONDS


@pytest.mark.full
def test_a_head_that_never_comes_ends_the_node(tiny: Config, tmp_path: Path) -> None:
    config = over_two_nodes(tiny, 2, startup_timeout_seconds=0.5)
    with node_1(config, tmp_path) as node:
        assert node.wait() == 3
    assert f"no head at 127.0.0.1:{config.parallel.master_port}" in node.log.read_text()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_node_that_waits(
    tiny: Config, tmp_path: Path, number: signal.Signals
) -> None:
    with node_1(over_two_nodes(tiny, 4), tmp_path) as node:
        wait_until(lambda: len(node.stages()) == 2, 30, "the node's stages run")
        stages = node.stages()
        node.process.send_signal(number)
        assert node.wait() == 0
        assert not any(stage.is_running() for stage in stages)
