"""The stages of a pipeline in one process, run one after the other: an executor without clocks.

Why it exists: what a server answers must not depend on chunk sizes, and to test that, chunk sizes
must be the only thing that differs between two runs. Over real processes the make-up of a step
also depends on when results arrive. Here the real stages (`worker.Runner`, each with its layers,
its KV pool and its mirror) run the plans of the real scheduler in order, so a run is a function of
its plans. The hop between processes, which moves bytes and computes nothing, is left to the
pipeline's own tests. Each stage reports its own model time, so calibration works as it does in a
server.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from atom_lite.attention.select import select_backend
from atom_lite.engine.step_times import TimesByStage
from atom_lite.messages import StepResult
from atom_lite.models.decoder import Decoder
from atom_lite.worker.device import resolve_device
from atom_lite.worker.runner import Runner, StagePlace, load_stage
from benchmarks.planted_error import PrefixDropper

if TYPE_CHECKING:
    from torch import Tensor

    from atom_lite.attention.protocol import AttentionMetadata, LayerKV
    from atom_lite.config import Config
    from atom_lite.messages import StepPlan


class ObservedDecoder(Decoder):
    """A decoder that keeps what its last forward returned."""

    def __init__(self, inner: Decoder) -> None:
        self._inner = inner
        self.hidden: Tensor | None = None

    def forward(
        self,
        inputs: Tensor,
        positions: Tensor,
        kv: list[LayerKV],
        metadata: AttentionMetadata | None,
    ) -> Tensor:
        """See Decoder; the result is kept until the next call."""
        self.hidden = self._inner.forward(inputs, positions, kv, metadata)
        return self.hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """See Decoder."""
        return self._inner.logits(hidden)

    def weight_bytes(self) -> int:
        """See Decoder."""
        return self._inner.weight_bytes()


class StagedModel:
    """An `engine.Executor` that runs a plan when its result is asked for.

    Args:
        runners: the stages, in order.
        last: the last stage's decoder.
        dropper: the backend under all of them, for planting an error.
    """

    def __init__(
        self, runners: list[Runner], last: ObservedDecoder, dropper: PrefixDropper
    ) -> None:
        self.runners = runners
        self.last = last
        self.dropper = dropper
        self._plans: deque[StepPlan] = deque()

    def start(self, plan: StepPlan) -> None:
        """See Executor."""
        self._plans.append(plan)

    def last_handed_on(self) -> int:
        """None: no step is ever between two stages when the scheduler is asked."""
        return -1

    def take_results(self) -> list[StepResult]:
        """Run the oldest plan to its end."""
        return [self._run(self._plans.popleft())] if self._plans else []

    def close(self) -> None:
        """Nothing runs on its own here."""

    def reset(self) -> None:
        """Forget all sequences; the next scheduler starts from an empty cache."""
        self._plans.clear()
        for runner in self.runners:
            runner.reset()

    def _run(self, plan: StepPlan) -> StepResult:
        times = TimesByStage(len(self.runners))
        output = self.runners[0].run_stage(plan)
        times.put(0, output.times)
        for stage, runner in enumerate(self.runners[1:], start=1):
            hidden = output.hidden
            output = runner.run_stage(plan, None if hidden is None else partial(_handed_on, hidden))
            times.put(stage, output.times)
        return StepResult(step_id=plan.step_id, tokens=output.tokens, times=times.take())


def _handed_on(hidden: Tensor) -> Tensor:
    """What a link would receive; the next stage may write to it."""
    return hidden


def load_staged_model(config: Config, num_stages: int) -> StagedModel:
    """Load every stage of the model that the flags name.

    Raises:
        ConfigError: as `Runner.load`.
    """
    device = resolve_device(config.model.device)
    dropper = PrefixDropper(select_backend(config.model.attention_backend, device))
    runners: list[Runner] = []
    decoders: list[ObservedDecoder] = []
    for stage in range(num_stages):
        place = StagePlace(
            stage=stage,
            num_stages=num_stages,
            # the stages share block ids, so all pools are as large as the first
            pool_blocks=(lambda: runners[0].info.num_blocks) if runners else None,
        )
        parts = load_stage(config, place, backend=dropper)
        decoders.append(ObservedDecoder(parts.decoder))
        runners.append(Runner(*parts._replace(decoder=decoders[-1])))
    return StagedModel(runners, decoders[-1], dropper)
