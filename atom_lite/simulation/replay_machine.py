"""Replay's measuring: two processes, one core each, always both at work.

While one process measures a chunk the other runs some other stage's chunk, so every time holds the
contention for memory bandwidth and caches that stages have in service. Two processes and not two
threads: with a second OpenMP team in one process neither runs at full speed.

Each kind of stage lives in one of the processes, dealt so that both hold about equally many layers.
A process whose own probes are done runs its smallest one, unrecorded, until the other is done too.
Runs in the program that wants to know, which itself runs no torch operation.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec

from atom_lite.errors import ConfigError, EngineError
from atom_lite.parallel.affinity import Cpu, split_cpus, usable_cpus
from atom_lite.simulation.replay import HopCost, Measurements, Probe
from atom_lite.simulation.replay_process import (
    Answer,
    ChunkSeconds,
    Moment,
    OpenLink,
    Order,
    Place,
    Port,
    Ready,
    ReceiveHidden,
    ReplaySpec,
    RunChunk,
    SendHidden,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from atom_lite.config import Config

T = TypeVar("T")

NUM_PROCESSES = 2
DRAW_PLACE = "draw"
_EXIT_SECONDS = 10.0
_HOP_TOKENS = (64, 2048)
_HOP_REPEATS = 15
_DRAW_REPEATS = 9
_DRAW_CHUNK_TOKENS = 64


class _Process:
    """One replay process and the pipe to it."""

    def __init__(self, spec: ReplaySpec) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "atom_lite.simulation.replay_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._decoder = msgspec.json.Decoder(Answer)
        self._write(msgspec.json.encode(spec))

    def order(self, order: Order) -> None:
        """Send an order."""
        self._write(msgspec.json.encode(order))

    def answer(self, kind: type[T]) -> T:
        """Wait for the next answer.

        Raises:
            EngineError: the process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise EngineError(f"a replay process ended with exit code {code}")
        answer = self._decoder.decode(line)
        assert isinstance(answer, kind)
        return answer

    def run(self, place: str, probe: Probe, *, draw: bool = False) -> ChunkSeconds:
        """Run one chunk and wait."""
        self.order(
            RunChunk(
                place=place,
                prefix_tokens=probe.prefix_tokens,
                new_tokens=probe.new_tokens,
                draw=draw,
            )
        )
        return self.answer(ChunkSeconds)

    def end(self) -> None:
        """Close its input, which ends it; kill it if that does not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            code = self._process.wait()
            raise EngineError(f"a replay process ended with exit code {code}") from error


class ReplayMachine:
    """Two loaded processes. Use it as a context manager.

    Args:
        config: of the model; its stages are as the config's partition says, one thread each.
        splits: layers per stage of each pipeline that will be replayed.
        prompt_tokens: of the longest prompt.

    Raises:
        ConfigError: fewer than two cores.
        EngineError: a process could not load.
    """

    def __init__(self, config: Config, splits: Sequence[Sequence[int]], prompt_tokens: int) -> None:
        cpus = usable_cpus()
        if len(cpus) < NUM_PROCESSES:
            raise ConfigError(f"replay needs {NUM_PROCESSES} CPUs, this process may use 1")
        self._homes = deal_stages({layers for split in splits for layers in split})
        self._processes: list[_Process] = []
        try:
            for index, share in enumerate(split_cpus(cpus, NUM_PROCESSES)):
                spec = _spec(config, (index, self._homes), splits, (share[:1], prompt_tokens))
                self._processes.append(_Process(spec))
            for process in self._processes:
                process.answer(Ready)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End both processes."""
        for process in self._processes:
            process.end()

    def measure(
        self,
        probes: Iterable[Probe],
        record: Callable[[Probe, ChunkSeconds], None],
        *,
        seed: int,
    ) -> None:
        """Measure each probe once, both processes at a time, in random order.

        Args:
            probes: different ones.
            record: called with each time, never by two threads at once.
            seed: of the order.
        """
        shuffled = sorted(probes)
        if not shuffled:
            return
        random.Random(seed).shuffle(shuffled)
        queues: list[deque[Probe]] = [deque() for _ in self._processes]
        for index, probe in enumerate(shuffled):
            homes = self._homes[probe.num_layers]
            queues[homes[index % len(homes)]].append(probe)
        finished = [threading.Event() for _ in self._processes]
        lock = threading.Lock()

        def drive(index: int) -> None:
            process, queue = self._processes[index], queues[index]
            filler = self._filler(index, shuffled)
            try:
                while queue:
                    probe = queue.popleft()
                    taken = process.run(_name(probe.num_layers), probe)
                    with lock:
                        record(probe, taken)
            finally:
                finished[index].set()
            while not finished[1 - index].is_set():
                process.run(_name(filler.num_layers), filler)

        with ThreadPoolExecutor(NUM_PROCESSES) as pool:
            for future in [pool.submit(drive, index) for index in range(NUM_PROCESSES)]:
                future.result()

    def _filler(self, index: int, probes: Sequence[Probe]) -> Probe:
        """The least of the shapes, on a kind of stage that the process holds."""
        shape = min(probes, key=lambda probe: probe.new_tokens)
        held = next(kind for kind, processes in self._homes.items() if index in processes)
        return shape._replace(num_layers=held)

    def measure_draw(self) -> float:
        """Seconds of final norm, head and sampling for the row that ends a prompt."""
        process = self._processes[0]
        chunk = Probe(0, 0, _DRAW_CHUNK_TOKENS)
        outside: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(_DRAW_REPEATS):
            for draw in (False, True):
                taken = process.run(DRAW_PLACE, chunk, draw=draw)
                outside[draw].append(taken.seconds - taken.model_seconds)
        return max(0.0, statistics.median(outside[True]) - statistics.median(outside[False]))

    def measure_hop(self, prompt_tokens: int) -> HopCost:
        """The link of servers on one host, sender to receiver, both processes otherwise idle."""
        sender, receiver = self._processes
        sender.order(OpenLink(rank=0))
        receiver.order(OpenLink(rank=1, port=sender.answer(Port).port))
        for process in self._processes:
            process.answer(Moment)
        step_id = 0
        medians = []
        sizes = [min(tokens, prompt_tokens) for tokens in _HOP_TOKENS]
        for tokens in sizes:
            times = []
            for _ in range(_HOP_REPEATS):
                receiver.order(ReceiveHidden(step_id=step_id, num_tokens=tokens))
                receiver.answer(Moment)
                sender.order(SendHidden(step_id=step_id, num_tokens=tokens))
                sent = sender.answer(Moment).seconds
                times.append(receiver.answer(Moment).seconds - sent)
                step_id += 1
            medians.append(statistics.median(times))
        slope = max(0.0, medians[1] - medians[0]) / max(1, sizes[1] - sizes[0])
        return HopCost(max(0.0, medians[0] - slope * sizes[0]), slope)


def calibrated(machine: ReplayMachine, prompt_tokens: int) -> Measurements:
    """Empty measurements with what does not depend on the plans."""
    return Measurements(draw_seconds=machine.measure_draw(), hop=machine.measure_hop(prompt_tokens))


def deal_stages(layer_counts: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Layers of a kind of stage -> which processes hold it; a single kind is held by both."""
    kinds = sorted(set(layer_counts), reverse=True)
    if len(kinds) == 1:
        return {kinds[0]: tuple(range(NUM_PROCESSES))}
    loads = [0] * NUM_PROCESSES
    homes: dict[int, tuple[int, ...]] = {}
    for kind in kinds:
        home = loads.index(min(loads))
        loads[home] += kind
        homes[kind] = (home,)
    return homes


def _name(num_layers: int) -> str:
    return str(num_layers)


def _spec(
    config: Config,
    home: tuple[int, dict[int, tuple[int, ...]]],
    splits: Sequence[Sequence[int]],
    share_and_prompt: tuple[tuple[Cpu, ...], int],
) -> ReplaySpec:
    index, homes = home
    share, prompt_tokens = share_and_prompt
    places = [_place(kind, splits) for kind, processes in homes.items() if index in processes]
    if index == 0:
        longest = max(splits, key=len)  # its last stage has the fewest layers beside the head
        places.append(Place(name=DRAW_PLACE, stage=len(longest) - 1, num_stages=len(longest)))
    return ReplaySpec(config=config, cpus=share, places=tuple(places), prompt_tokens=prompt_tokens)


def _place(num_layers: int, splits: Sequence[Sequence[int]]) -> Place:
    """A stage with that many layers; one from the middle of a pipeline where there is one."""
    found = [
        (0 < stage < len(split) - 1, stage > 0, stage, len(split))
        for split in splits
        for stage, layers in enumerate(split)
        if layers == num_layers
    ]
    *_, stage, num_stages = max(found)
    return Place(name=_name(num_layers), stage=stage, num_stages=num_stages)
