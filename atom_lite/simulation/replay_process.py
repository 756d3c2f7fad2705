"""One of replay's two processes: runs chunks through stages and says how long each took.

`python -m atom_lite.simulation.replay_process`, started by `replay_machine`, on one core with one
thread. Standard input brings one line of JSON, `ReplaySpec`, and then an order a line; standard
output answers each. It decides nothing and ends with its input.

All chunks are of one and the same prompt: hidden state p is the same row whatever chunk it comes
in, so a chunk writes exactly the keys and values that were there, and once the whole prompt has
been run in order (`_fill`) every prefix is really there, for every cut.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import torch

from atom_lite.config import Config
from atom_lite.messages import SamplingParams, SequenceStart, StepPlan, StepRow
from atom_lite.observability.logs import configure_logging
from atom_lite.parallel.affinity import Cpu, pin_process
from atom_lite.parallel.distributed_hidden import DistributedHiddenLink
from atom_lite.parallel.groups import open_groups, open_store
from atom_lite.parallel.rendezvous import Rendezvous
from atom_lite.parallel.topology import Topology
from atom_lite.worker.runner import Runner, StagePlace

if TYPE_CHECKING:
    from torch import Tensor

_FILL_CHUNK_TOKENS = 512
_SEQUENCE = 0
_LINK_STAGES = 2


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A stage to load, and the name that orders call it by."""

    name: str
    stage: int
    num_stages: int


class ReplaySpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told at its start."""

    config: Config
    cpus: tuple[Cpu, ...]
    places: tuple[Place, ...]
    prompt_tokens: int  # the longest prompt of any plan


class RunChunk(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Run a chunk on a stage; answered by `ChunkSeconds`."""

    place: str
    prefix_tokens: int
    new_tokens: int
    draw: bool = False  # a token from its last row; last stage only


class OpenLink(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Join a link of two stages; rank 0 answers with `Port` first, both with `Moment`."""

    rank: int
    port: int = 0  # rank 0 takes a free one


class SendHidden(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Send a chunk's hidden states; answered by the moment right before."""

    step_id: int
    num_tokens: int


class ReceiveHidden(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Receive them; answered once when the receive is posted, and when they are there."""

    step_id: int
    num_tokens: int


Order: TypeAlias = RunChunk | OpenLink | SendHidden | ReceiveHidden


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All places are loaded and hold the prompt's keys and values."""


class ChunkSeconds(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How long a stage was busy with a chunk: its inputs, its layers, and what it drew."""

    seconds: float
    cpu_seconds: float  # of the one thread; less where other programs took turns on the core
    model_seconds: float  # the layers alone, what the latency model learns from


class Port(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where rank 0 waits for rank 1."""

    port: int


class Moment(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reading of the host's monotonic clock, in seconds."""

    seconds: float


Answer: TypeAlias = Ready | ChunkSeconds | Port | Moment


class _LoadedStage:
    """A stage that runs chunks of the one prompt in any order."""

    def __init__(self, runner: Runner, spec: ReplaySpec, hidden: Tensor) -> None:
        self._runner = runner
        self._spec = spec
        self._hidden = hidden  # [prompt tokens, E]
        self._step_id = 0
        self._fill()

    def run(self, order: RunChunk) -> ChunkSeconds:
        start, end = order.prefix_tokens, order.prefix_tokens + order.new_tokens
        # The layers write into what they are given, so each run gets a copy, made beforehand.
        arriving = self._hidden[start:end].clone()
        receive = None if self._runner.layers.is_first else lambda: arriving
        plan = self._plan(start, order.new_tokens, draw=order.draw)
        began, cpu_began = time.perf_counter(), time.thread_time()
        (times,) = self._runner.run_stage(plan, receive).times  # of a CPU: known at once
        return ChunkSeconds(
            seconds=time.perf_counter() - began,
            cpu_seconds=time.thread_time() - cpu_began,
            model_seconds=times.stage_seconds[0],
        )

    def _fill(self) -> None:
        """Run the prompt in order: keys and values of every position are there afterwards."""
        total = self._spec.prompt_tokens
        for start in range(0, total, _FILL_CHUNK_TOKENS):
            new = min(_FILL_CHUNK_TOKENS, total - start)
            self.run(RunChunk(place="", prefix_tokens=start, new_tokens=new))

    def _plan(self, start: int, num_tokens: int, *, draw: bool) -> StepPlan:
        is_first = self._step_id == 0
        starts, blocks = [], []
        if is_first:
            starts, blocks = [self._start()], list(range(self._num_blocks()))
        row = StepRow(
            sequence_id=_SEQUENCE,
            epoch=0,
            start=start,
            num_tokens=num_tokens,
            sample=draw,
            new_block_ids=blocks,
        )
        self._step_id += 1
        return StepPlan(step_id=self._step_id, starts=starts, rows=[row])

    def _num_blocks(self) -> int:
        return -(-self._spec.prompt_tokens // self._spec.config.cache.block_size)

    def _start(self) -> SequenceStart:
        total, vocabulary = self._spec.prompt_tokens, self._runner.info.vocab_size
        return SequenceStart(
            sequence_id=_SEQUENCE,
            epoch=0,
            token_ids=[index % vocabulary for index in range(total)],
            num_prompt_tokens=total,
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
        )


class _Replayer:
    """Carries out orders."""

    def __init__(self, spec: ReplaySpec) -> None:
        torch.manual_seed(0)
        self._stages: dict[str, _LoadedStage] = {}
        for place in spec.places:
            runner = Runner.load(
                spec.config, StagePlace(stage=place.stage, num_stages=place.num_stages)
            )
            dtype = getattr(torch, runner.info.activation_dtype)
            self._hidden = torch.randn(spec.prompt_tokens, runner.info.hidden_size).to(dtype)
            self._stages[place.name] = _LoadedStage(runner, spec, self._hidden)
        self._link: DistributedHiddenLink | None = None

    def obey(self, order: Order) -> None:
        """Carry out one order and answer it."""
        match order:
            case RunChunk():
                _answer(self._stages[order.place].run(order))
            case OpenLink():
                self._link = _open_link(order)
                _answer(Moment(seconds=time.monotonic()))
            case SendHidden():
                assert self._link is not None
                tensor = self._hidden[: order.num_tokens].contiguous()
                _answer(Moment(seconds=time.monotonic()))
                self._link.send(order.step_id, tensor)
            case ReceiveHidden():
                assert self._link is not None
                shape = (order.num_tokens, self._hidden.shape[1])
                posted = self._link.post_receive(order.step_id, shape, self._hidden.dtype)
                _answer(Moment(seconds=time.monotonic()))
                posted.wait()
                _answer(Moment(seconds=time.monotonic()))


def _open_link(order: OpenLink) -> DistributedHiddenLink:
    topology = Topology(num_stages=_LINK_STAGES, rank=order.rank)
    is_one_host = sys.platform == "linux"  # as `placement.one_host` says of a server
    store = open_store(Rendezvous(port=order.port), topology)
    if topology.is_head:
        _answer(Port(port=store.port))
    rendezvous = Rendezvous(port=store.port, is_one_host=is_one_host)
    groups = open_groups(topology, store, rendezvous, data_backend="gloo")
    return DistributedHiddenLink(
        topology, groups, device=torch.device("cpu"), max_sends_in_flight=_LINK_STAGES
    )


def _answer(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Load, fill, then orders until the input ends."""
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=ReplaySpec)
    configure_logging(spec.config.observability.log_level)
    pin_process(spec.cpus, num_threads=1)
    replayer = _Replayer(spec)
    _answer(Ready())
    decoder = msgspec.json.Decoder(Order)
    for line in sys.stdin.buffer:
        replayer.obey(decoder.decode(line))


if __name__ == "__main__":
    main()
